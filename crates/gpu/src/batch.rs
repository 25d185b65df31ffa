//! A step's input on the device. Does not know operations.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use throng_model::backend::BackendError;
use throng_model::backend::rotations::Rotations;
use throng_model::batch_input::BatchInput;

use crate::device::{Device, Storage};
use crate::recorder::Recorder;

/// A step's input: numbers in one buffer, and tables that operations of the step derive from it when they
/// first need them.
#[derive(Debug)]
pub struct Batch {
    device: Arc<Device>,
    pub(crate) input: BatchInput,
    pub(crate) words: Storage,
    pub(crate) places: Places,
    /// Number that changes with each step.
    generation: u64,
    derived: RefCell<HashMap<DerivedKey, Derived>>,
}

/// Offsets of the parts of a batch in its buffer, in words.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Places {
    pub(crate) tokens: u32,
    /// Offset of the span of each token.
    pub(crate) row_spans: u32,
    pub(crate) ends: u32,
    /// First row, number of rows, first position, first block of each span.
    pub(crate) spans: u32,
    pub(crate) blocks: u32,
    pub(crate) logit_tokens: u32,
}

/// A table that is derived from a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum DerivedKey {
    /// Angles of a table of a set of tables.
    Angles(u64, usize),
    /// Tiles of this number of tokens of one span.
    Tiles(usize),
    /// Chains of spans of recurrent states.
    Chains,
}

#[derive(Debug)]
struct Derived {
    generation: u64,
    storage: Arc<Storage>,
    n: usize,
}

impl Batch {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, BackendError> {
        Ok(Self {
            device: Arc::clone(device),
            input: BatchInput::default(),
            words: device.storage("batches", 1 << 12)?,
            places: Places::default(),
            generation: 0,
            derived: RefCell::default(),
        })
    }

    /// Replaces the input. Operations so far are submitted first, so that none of them reads the new one.
    pub(crate) fn upload(&mut self, input: &BatchInput, recorder: &mut Recorder) -> Result<(), BackendError> {
        recorder.submit();
        self.input.copy_from(input);
        self.generation += 1;
        let mut words = Vec::new();
        let mut put = |part: &mut dyn Iterator<Item = u32>| {
            let at = words.len() as u32;
            words.extend(part);
            at
        };
        let mut row_spans = vec![0; input.n_tokens()];
        for (i, span) in input.spans.iter().enumerate() {
            row_spans[span.first_row..span.first_row + span.n_rows].fill(i as u32);
        }
        let spans =
            input.spans.iter().flat_map(|span| [span.first_row, span.n_rows, span.start, span.first_block]);
        self.places = Places {
            tokens: put(&mut input.tokens.iter().copied()),
            row_spans: put(&mut row_spans.into_iter()),
            ends: put(&mut input.ends.iter().copied()),
            spans: put(&mut spans.map(|number| number as u32)),
            blocks: put(&mut input.blocks.iter().copied()),
            logit_tokens: put(&mut input.logit_tokens.iter().copied()),
        };
        let n_bytes = size_of_val(words.as_slice());
        if self.words.buffer.size() < n_bytes as u64 {
            self.words = self.device.storage("batches", n_bytes.next_power_of_two())?;
        }
        self.device.queue.write_buffer(&self.words.buffer, 0, bytemuck::cast_slice(&words));
        Ok(())
    }

    /// A table of this step, made at its first use, and the number of its items.
    pub(crate) fn derive(
        &self,
        key: DerivedKey,
        make: impl FnOnce() -> (Vec<u32>, usize),
    ) -> (Arc<Storage>, usize) {
        let mut derived = self.derived.borrow_mut();
        if let Some(found) = derived.get(&key).filter(|found| found.generation == self.generation) {
            return (Arc::clone(&found.storage), found.n);
        }
        let (words, n) = make();
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        // No operation of this step has read the table yet, and those before were submitted.
        let old = derived.remove(&key).filter(|old| old.storage.buffer.size() >= bytes.len() as u64);
        let storage = old.map(|old| old.storage);
        let storage = storage.unwrap_or_else(|| {
            Arc::new(self.device.storage_or_empty("batches", bytes.len().next_power_of_two()))
        });
        if storage.buffer.size() >= bytes.len() as u64 {
            self.device.queue.write_buffer(&storage.buffer, 0, bytes);
        }
        let generation = self.generation;
        derived.insert(key, Derived { generation, storage: Arc::clone(&storage), n });
        (storage, n)
    }

    /// Angles of all tokens: cosines, then sines.
    pub(crate) fn angles(&self, tables_id: u64, table_idx: usize, table: &Rotations) -> Arc<Storage> {
        let make = || {
            let mut angles: Vec<f32> = Vec::with_capacity(self.input.n_tokens() * 2 * table.n_pairs());
            for (row, &position) in self.input.positions.iter().enumerate() {
                match self.input.rotary.get(row) {
                    Some(&rotary) if table.has_sections() => table.gather(rotary, &mut angles),
                    _ => {
                        let (cos, sin) = table.at(position as usize);
                        angles.extend_from_slice(cos);
                        angles.extend_from_slice(sin);
                    }
                }
            }
            (angles.into_iter().map(f32::to_bits).collect(), 0)
        };
        self.derive(DerivedKey::Angles(tables_id, table_idx), make).0
    }

    /// Tiles of up to `most` adjacent tokens of a span: first row, number of rows, span.
    pub(crate) fn tiles(&self, most: usize) -> (Arc<Storage>, usize) {
        self.derive(DerivedKey::Tiles(most), || {
            let mut tiles = Vec::new();
            for (i, span) in self.input.spans.iter().enumerate() {
                for first in (0..span.n_rows).step_by(most) {
                    let n = most.min(span.n_rows - first);
                    tiles.extend([span.first_row + first, n, i].map(|number| number as u32));
                }
            }
            let n = tiles.len() / 3;
            (tiles, n)
        })
    }
}
