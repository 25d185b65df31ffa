//! Plain numbers at the interface to a device: heads, columns, states, activations. Defined where the kernels
//! compute with them, or here. A device reads them and needs no kernels. Does not know buffers, weights and
//! architectures.

pub use throng_kernels::attention::{KvDtype, KvShape, QuerySpan, UnknownKvDtype};
pub use throng_kernels::low_rank::RowGroups;
pub use throng_kernels::recurrent::{StateLayerShape, StateSpan};
pub use throng_kernels::reference::{AttentionShape, DeltaShape, RopeStyle, StateSpaceShape};
pub use throng_kernels::rows::{Activation, Columns};

/// Equally wide groups of columns at equal distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadColumns {
    /// The first column of the first one.
    pub first: usize,
    /// Distance from one to the next.
    pub stride: usize,
}

/// The sizes of a step, each rounded up to a power of two, so that many steps have the same shape: the key
/// under which a device keeps recorded layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct StepShape {
    /// Maximum number of new tokens of all sequences.
    pub n_tokens: usize,
    /// Maximum number of sequences.
    pub n_sequences: usize,
    /// Maximum number of tokens with wanted logits.
    pub n_logits: usize,
    /// Most KV blocks of one sequence.
    pub n_blocks: usize,
}
