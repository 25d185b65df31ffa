//! Use of recurrent states by a step: the slots that a sequence's state is read from and written to, and
//! copies kept at positions in between. Does not know the content of a state.

/// An index into an executor's slots of one kind of memory beside KV blocks. A slot of recurrent state
/// holds the states of all recurrent layers for one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemorySlot(pub u32);

/// The recurrent state of one sequence in a step.
///
/// No slot that a sequence writes is read or written by another sequence of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateShare {
    /// Slot with the state before the first new token; `None` for a sequence without tokens, whose state is
    /// zeros.
    pub from: Option<MemorySlot>,
    /// The slot that holds the state after the last new token when the step has ended. May be `from`.
    pub to: MemorySlot,
    /// Further copies of the state, in increasing order of tokens.
    pub saves: [Option<StateSave>; 2],
}

/// A state within the new tokens that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSave {
    /// Number of the sequence's new tokens after which the state is kept; at least 1.
    pub n_tokens: u32,
    /// Slot that gets the state.
    pub slot: MemorySlot,
}

/// A slot that is copied into another one before the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotCopy {
    /// Slot that is read.
    pub from: MemorySlot,
    /// The slot that is overwritten.
    pub to: MemorySlot,
}
