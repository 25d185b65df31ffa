//! The recurrent states of one layer, a slot for each sequence: the window of a convolution in groups of
//! sixteen columns, and the heads. Does not know their meaning.

use std::ops::Range;

use throng_os::memory::{AlignedBytes, Pages};

use crate::disjoint::Disjoint;

/// Number of columns of a group: a vector.
pub(super) const COLUMNS: usize = 16;

/// Tokens of a block: a head's matrix changes once in this number of tokens. Equal to the number of columns,
/// so that the kept data of a token of a block is an element of a vector.
pub(super) const BLOCK: usize = COLUMNS;

/// The sizes of one layer's state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateLayerShape {
    /// Number of channels of the convolution.
    pub n_channels: usize,
    /// Number of tokens of the convolution.
    pub kernel: usize,
    /// Number of heads; 0 for a layer that is only a convolution.
    pub n_heads: usize,
    /// Number of heads of keys, each of which serves the same number of heads.
    pub n_key_heads: usize,
    /// Number of rows of a head's matrix.
    pub key_dim: usize,
    /// Number of columns of a head's matrix.
    pub value_dim: usize,
}

impl StateLayerShape {
    /// Number of groups of columns of one head's matrix.
    pub(super) fn n_head_groups(&self) -> usize {
        self.value_dim.div_ceil(COLUMNS)
    }

    /// Elements of the keys of an unfinished block and their number, for one head of keys; `None` when that
    /// overflows.
    fn group_len(&self) -> Option<usize> {
        BLOCK.checked_mul(self.key_dim)?.checked_add(COLUMNS)
    }

    /// Elements of one head's block and of its matrix: [`super::block::HeadState`]; `None` when that
    /// overflows.
    fn head_lens(&self) -> Option<[usize; 2]> {
        let block = self.n_head_groups().checked_mul(BLOCK)?.checked_add(2)?.checked_mul(COLUMNS)?;
        Some([block, self.n_head_groups().checked_mul(self.key_dim)?.checked_mul(COLUMNS)?])
    }

    /// Ends of the windows, the groups, the blocks and the matrices; `None` when that overflows.
    fn ends(&self) -> Option<[usize; 4]> {
        let window = COLUMNS.checked_mul(self.kernel.checked_sub(1)?)?;
        let windows = self.n_channels.div_ceil(COLUMNS).checked_mul(window)?;
        let groups = windows.checked_add(self.n_key_heads.checked_mul(self.group_len()?)?)?;
        let [block, matrix] = self.head_lens()?;
        let blocks = groups.checked_add(self.n_heads.checked_mul(block)?)?;
        Some([windows, groups, blocks, blocks.checked_add(self.n_heads.checked_mul(matrix)?)?])
    }

    /// The part of a group's keys: `[16 tokens, key_dim]`, then their number in 16 elements.
    pub(super) fn group_part(&self, group: usize) -> Range<usize> {
        let ([windows, ..], len) = (self.ends().unwrap_or_default(), self.group_len().unwrap_or_default());
        windows + group * len..windows + (group + 1) * len
    }

    /// The parts of a head's block and of its matrix. The matrices of all heads are contiguous, so that
    /// reading them is one stream.
    pub(super) fn head_parts(&self, head: usize) -> [Range<usize>; 2] {
        let ([_, groups, blocks, _], lens) = (self.ends().unwrap_or_default(), self.head_lens());
        let [block, matrix] = lens.unwrap_or_default();
        let part = |at: usize, len: usize| at + head * len..at + (head + 1) * len;
        [part(groups, block), part(blocks, matrix)]
    }

    /// The part of a group of channels' window.
    pub(super) fn window_part(&self, group: usize) -> Range<usize> {
        let len = (self.kernel - 1) * COLUMNS;
        group * len..(group + 1) * len
    }

    /// Elements of one sequence's state; `None` when that overflows.
    pub fn n_elements(&self) -> Option<usize> {
        self.ends().map(|[.., end]| end)
    }
}

/// New tokens of one sequence, and their effect on its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSpan {
    /// Index of the first token's row.
    pub first_row: usize,
    /// Number of rows; none where a state is only copied.
    pub n_rows: usize,
    /// Slot with the state before the tokens; none: zeros.
    pub from: Option<u32>,
    /// Slot that gets the state after the tokens.
    pub to: u32,
    /// Whether the span continues the sequence of the span before, from the row after its last one and the
    /// slot that it wrote.
    pub continues: bool,
}

/// The states of one layer.
#[derive(Debug)]
pub struct StateLayer {
    shape: StateLayerShape,
    n_slots: usize,
    bytes: AlignedBytes,
}

impl StateLayer {
    /// States of zeros. `None` when they cannot be allocated.
    pub fn new(shape: StateLayerShape, n_slots: usize) -> Option<Self> {
        let n_bytes = shape.n_elements()?.checked_mul(n_slots)?.checked_mul(size_of::<f32>())?;
        Some(Self { shape, n_slots, bytes: AlignedBytes::zeroed(n_bytes, Pages::Huge)? })
    }

    /// The sizes of one state.
    pub fn shape(&self) -> &StateLayerShape {
        &self.shape
    }

    /// Copies a state to another slot.
    ///
    /// # Panics
    /// When a slot does not exist.
    pub fn copy(&mut self, from: u32, to: u32) {
        let (n, from, to) = (self.shape.n_elements().unwrap_or(0), from as usize, to as usize);
        assert!(from < self.n_slots && to < self.n_slots, "a slot that does not exist");
        self.elements().copy_within(from * n..(from + 1) * n, to * n);
    }

    /// Bytes of one state.
    pub fn slot_bytes(&self) -> usize {
        self.shape.n_elements().unwrap_or(0) * size_of::<f32>()
    }

    /// The bytes of a state.
    ///
    /// # Panics
    /// When the slot does not exist.
    pub fn slot(&self, slot: u32) -> &[u8] {
        assert!((slot as usize) < self.n_slots, "a slot that does not exist");
        &self.bytes.as_slice()[slot as usize * self.slot_bytes()..][..self.slot_bytes()]
    }

    /// The bytes of a state, to be overwritten.
    ///
    /// # Panics
    /// When the slot does not exist.
    pub fn slot_mut(&mut self, slot: u32) -> &mut [u8] {
        assert!((slot as usize) < self.n_slots, "a slot that does not exist");
        let n_bytes = self.slot_bytes();
        &mut self.bytes.as_mut_slice()[slot as usize * n_bytes..][..n_bytes]
    }

    fn elements(&mut self) -> &mut [f32] {
        let n = self.shape.n_elements().unwrap_or(0) * self.n_slots;
        &mut bytemuck::cast_slice_mut(self.bytes.as_mut_slice())[..n]
    }

    /// The states, to be written by several threads, each of which takes one sequence's part of them.
    ///
    /// # Panics
    /// When a slot does not exist, or one sequence writes a slot that another one reads or writes.
    pub(super) fn write(&mut self, spans: &[StateSpan]) -> StateWriter<'_> {
        let mut writers = vec![None; self.n_slots];
        let mut sequence_idx = 0;
        for (i, span) in spans.iter().enumerate() {
            sequence_idx += usize::from(!span.continues);
            let continues = |before: &StateSpan| {
                span.from == Some(before.to) && span.first_row == before.first_row + before.n_rows
            };
            assert!(!span.continues || i > 0 && continues(&spans[i - 1]), "a span that continues none");
            let writer = writers[span.to as usize].get_or_insert(sequence_idx);
            assert_eq!(*writer, sequence_idx, "two sequences write one state");
        }
        sequence_idx = 0;
        for span in spans {
            sequence_idx += usize::from(!span.continues);
            let writer = span.from.and_then(|from| writers[from as usize]);
            assert!(writer.is_none_or(|writer| writer == sequence_idx), "a state is read and written");
        }
        let n_elements = self.shape.n_elements().unwrap_or(0);
        StateWriter { elements: Disjoint::new(self.elements()), n_elements }
    }
}

/// States that threads write in parts.
pub(super) struct StateWriter<'a> {
    elements: Disjoint<'a, f32>,
    n_elements: usize,
}

impl StateWriter<'_> {
    /// A part of the slot that a span writes, with its content before the span's tokens.
    ///
    /// # Safety
    /// No other thread may take an overlapping part for a span of the same sequence, and no part taken before
    /// may be in use.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's word")]
    pub(super) unsafe fn begin(&self, span: &StateSpan, part: Range<usize>) -> &mut [f32] {
        assert!(part.end <= self.n_elements, "a part beyond the state");
        // SAFETY: `write` has checked that no other sequence reads or writes the slot; within the sequence, it is the caller's word.
        let to = unsafe { self.elements.part(span.to as usize * self.n_elements + part.start, part.len()) };
        match span.from {
            None => to.fill(0.0),
            Some(from) if from == span.to => {}
            // SAFETY: another slot, which no other sequence writes.
            Some(from) => to.copy_from_slice(unsafe { self.read(from, part) }),
        }
        to
    }

    /// A part of a slot that a sequence reads.
    ///
    /// # Safety
    /// Nothing may write the part while it is in use.
    pub(super) unsafe fn read(&self, slot: u32, part: Range<usize>) -> &[f32] {
        assert!(part.end <= self.n_elements, "a part beyond the state");
        // SAFETY: by the caller; others may only read it.
        unsafe { self.elements.shared(slot as usize * self.n_elements + part.start, part.len()) }
    }
}

/// The spans of each sequence.
pub(super) fn sequences(spans: &[StateSpan]) -> Vec<&[StateSpan]> {
    spans.chunk_by(|_, next| next.continues).collect()
}
