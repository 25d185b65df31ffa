//! The extension point for devices: the operations of one device over its own buffers. The forward pass above it is written
//! once. A backend knows shapes; it does not know architectures, requests and files.
//!
//! A backend implements four traits, in this order:
//! - [`DeviceMemory`]: buffers, weights, keys and values, and the copies between host and device;
//! - [`DeviceOps`]: the operations. Most are required; the fusions among them have default bodies made of the required ones;
//! - [`RecurrentOps`]: states and operations of recurrent layers;
//! - [`Backend`]: steps, sampling on the device, and what a backend may add whose memory is the host's. All of it is optional.
//!
//! Host memory crosses this interface in four places: weights and batches going in, logits and chosen tokens coming out.
//! Operations report no errors, because a device runs them later: its faults are reported by [`DeviceMemory::download`] and
//! [`Backend::collect`]. Shapes that do not fit are a bug of the caller and panic.
//!
//! Batch invariance is part of the contract: the result of an operation for one row of a buffer (one token) has the same bits
//! whatever the other rows are, and on any number of threads.

pub mod host;
pub mod host_states;
pub mod host_tensor;
mod memory;
mod operands;
mod ops;
mod recurrent;
pub mod rotations;
mod step;

use throng_core::request::TokenId;
pub use throng_kernels::low_rank::{LowRankPart, RowGroups};
pub use throng_kernels::reference::AttentionShape;
pub use throng_kernels::rows::Columns;

use crate::sampler::SamplingInput;

use host::{HostThreads, OneThread, PackedWeights};
pub use memory::{BlockCopy, DeviceMemory, Expert, Linear, MatrixRole};
pub use operands::{AttentionQueries, GatedMlp, HeadColumns, MlpScratch, Norm, Router, Scratch};
pub use ops::DeviceOps;
pub use recurrent::{
    Conv, ConvWeights, DeltaNet, DeltaShape, DeltaWeights, LayerStates, RecurrentOps, StateSpace,
    StateSpaceShape, StateSpaceWeights,
};
pub use step::{StepShape, Ticket};

/// A device that runs a decoder. Every method has a default body, which is right for a device that runs each operation at once
/// and leaves sampling to the host.
pub trait Backend: DeviceOps + RecurrentOps {
    /// How many steps may be submitted and not collected, at most
    /// [`MAX_STEPS_IN_FLIGHT`](throng_core::executor::MAX_STEPS_IN_FLIGHT). More than 1 is for devices that
    /// run operations later and choose tokens: then the host plans the next step while the device runs one.
    fn max_steps_in_flight(&self) -> usize {
        1
    }

    /// Announces the next step, before its first operation. From there to the last layer, all steps of one shape are the same
    /// operations on the same buffers, with no more rows than the shape says: a device may capture them once and replay them.
    fn begin_step(&mut self, _shape: StepShape) {}

    /// Chooses one token from each row of `logits`, in order, and keeps the tokens on the device; `true` when it has done so for
    /// all rows. `rows` says how, with the rules and the random numbers of [`crate::sampler`]. Rows whose log-probabilities are
    /// reported, or that have a constraint, are never given. A row with a NaN, or without a token that may be chosen, gets
    /// [`NO_TOKEN`]. `false` leaves all rows to the host, and `logits` as they were.
    fn choose(
        &mut self,
        _logits: &mut Self::Buffer,
        _rows: &mut dyn ExactSizeIterator<Item = SamplingInput<'_>>,
    ) -> bool {
        false
    }

    /// Ends the step that the operations since the last call belong to, and never waits. The next step may read the tokens that it
    /// chose before the host has collected them, see [`CarriedToken`](crate::batch_input::CarriedToken).
    fn submit(&mut self) -> Ticket {
        Ticket::default()
    }

    /// Waits until the step has finished and appends the tokens that [`Self::choose`] chose in it to `chosen`. Tickets are
    /// collected in the order in which they were given.
    ///
    /// # Errors
    /// When an operation of the step or of one before it failed on the device.
    fn collect(&mut self, _ticket: Ticket, _chosen: &mut Vec<TokenId>) -> Result<(), BackendError> {
        Ok(())
    }

    /// The threads of the host that work for this backend: for sampling from downloaded logits, and for quantizing weights.
    fn host_threads(&self) -> &dyn HostThreads {
        &OneThread
    }

    /// The weights in the backend's own layout, where a file can keep them for the next start.
    fn packed_weights(&self) -> Option<&dyn PackedWeights<Self::Matrix>> {
        None
    }
}

/// In the place of a token that could not be chosen.
pub const NO_TOKEN: TokenId = TokenId::MAX;

/// Why a device refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// Its memory does not suffice.
    #[error("no memory for {what} ({n_bytes} bytes)")]
    OutOfMemory {
        /// What was to be allocated.
        what: &'static str,
        /// How much of it.
        n_bytes: usize,
    },
    /// The backend cannot hold or compute this.
    #[error("this backend cannot do {0}")]
    Unsupported(String),
    /// The device or its driver failed.
    #[error("the device failed: {0}")]
    Device(String),
}
