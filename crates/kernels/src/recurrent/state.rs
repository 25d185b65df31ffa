//! The recurrent states of one layer, a slot for each sequence: the window of a convolution and the matrix of each head, both in groups of
//! sixteen columns. Does not know what they mean.

use crate::memory::{AlignedBytes, Disjoint, Pages};

/// Columns of a group: a vector.
pub(super) const COLUMNS: usize = 16;

/// The sizes of one layer's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLayerShape {
    /// Channels of the convolution.
    pub n_channels: usize,
    /// Tokens of the convolution.
    pub kernel: usize,
    /// Heads; 0 for a layer that is only a convolution.
    pub n_heads: usize,
    /// Rows of a head's matrix.
    pub key_dim: usize,
    /// Columns of a head's matrix.
    pub value_dim: usize,
}

impl StateLayerShape {
    /// Elements of a group of channels' window.
    pub(super) fn window_len(&self) -> usize {
        (self.kernel - 1) * COLUMNS
    }

    /// Groups of columns of one head's matrix.
    pub(super) fn n_head_groups(&self) -> usize {
        self.value_dim.div_ceil(COLUMNS)
    }

    /// Elements of a group of columns of a head's matrix.
    pub(super) fn group_len(&self) -> usize {
        self.key_dim * COLUMNS
    }

    /// Where the matrices of the heads begin.
    pub(super) fn heads_at(&self) -> usize {
        self.n_channels.div_ceil(COLUMNS) * self.window_len()
    }

    /// Elements of one sequence's state; `None` when that overflows.
    pub fn n_elements(&self) -> Option<usize> {
        let window = self.n_channels.div_ceil(COLUMNS).checked_mul(self.kernel.checked_sub(1)?)?;
        let heads = self.n_heads.checked_mul(self.n_head_groups())?.checked_mul(self.key_dim)?;
        window.checked_add(heads)?.checked_mul(COLUMNS)
    }
}

/// New tokens of one sequence, and what they do to its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSpan {
    /// The row of the first.
    pub first_row: usize,
    /// How many there are; none where a state is only copied.
    pub n_rows: usize,
    /// The slot with the state before them; none: zeros.
    pub from: Option<u32>,
    /// The slot that gets the state after them.
    pub to: u32,
    /// Whether it goes on with the sequence of the span before, from the slot that that one wrote.
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
        Some(Self { shape, n_slots, bytes: AlignedBytes::zeroed(n_bytes, Pages::Small)? })
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
            assert!(
                !span.continues || i > 0 && span.from == Some(spans[i - 1].to),
                "a span that continues none"
            );
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
    /// Elements `at..at + len` of the slot that a span writes, with what they hold before the span's tokens.
    ///
    /// # Safety
    /// No other thread may take an overlapping part for a span of the same sequence, and no part taken before may be in use.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's word")]
    pub(super) unsafe fn begin(&self, span: &StateSpan, at: usize, len: usize) -> &mut [f32] {
        assert!(at + len <= self.n_elements, "a part beyond the state");
        // SAFETY: `write` has checked that no other sequence reads or writes the slot; within the sequence, it is the caller's word.
        let to = unsafe { self.elements.part(span.to as usize * self.n_elements + at, len) };
        match span.from {
            None => to.fill(0.0),
            Some(from) if from == span.to => {}
            // SAFETY: another slot, which no other sequence writes, and which exists: `pointer` and the size checked above.
            Some(from) => unsafe {
                let from = self.elements.pointer(from as usize * self.n_elements + at);
                to.as_mut_ptr().copy_from_nonoverlapping(from, len);
            },
        }
        to
    }
}

/// The spans of each sequence.
pub(super) fn sequences(spans: &[StateSpan]) -> Vec<&[StateSpan]> {
    spans.chunk_by(|_, next| next.continues).collect()
}
