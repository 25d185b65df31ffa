//! Errors of tensors and progress of loading. Does not know files.

use crate::backend::BackendError;
use crate::config::StageError;

/// Reason why a model's tensors were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// A tensor that the architecture needs is missing in the file.
    #[error("the model lacks the tensor {name}")]
    Missing {
        /// Name of the tensor.
        name: String,
    },
    /// A tensor that the architecture needs has numbers that no quantization explains.
    #[error(
        "tensor {name} has element type {found} (F32, F16 and BF16 are read, others where config.json says how \
         they are quantized)"
    )]
    Type {
        /// Name of the tensor.
        name: String,
        /// Element type in the file.
        found: String,
    },
    /// A tensor's shape differs from the configuration.
    #[error("tensor {name}: expected shape {expected:?}, found {found:?}")]
    Shape {
        /// Name of the tensor.
        name: String,
        /// Shape by the configuration, slowest dimension first.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// A tensor of a head whose meaning is unknown.
    #[error("tensor {name} is not one of an EAGLE-3 head")]
    Unknown {
        /// Name of the tensor.
        name: String,
    },
    /// A tensor has invalid content.
    #[error("{what}")]
    Malformed {
        /// Reason of the refusal.
        what: String,
    },
    /// The decoder cannot have such a stage.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The device refused it.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Progress of preparing a model's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// Number of bytes prepared so far.
    pub done_bytes: u64,
    /// Bytes of all tensors.
    pub total_bytes: u64,
}
