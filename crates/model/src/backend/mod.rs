//! The extension point for devices: the operations of one device over its own buffers. The forward pass above
//! it is written once. A backend knows shapes; it does not know architectures, requests and files.
//!
//! A backend implements four traits, in this order:
//! - [`DeviceMemory`]: buffers, weights, keys and values, and the copies between host and device;
//! - [`DeviceOps`]: the operations. Those that a Llama needs are required; fusions have default bodies made
//!   of these, and the others have bodies that panic: a device that lacks them reports it when it is asked
//!   whether it [supports](Backend::supports) a decoder;
//! - [`RecurrentOps`]: states and operations of recurrent layers, all of them optional;
//! - [`Backend`]: supported models and formats, steps, recorded layers, sampling on the device, and optional
//!   parts of backends whose memory is the host's. All of it is optional.
//!
//! The plain numbers among the arguments are those of [`crate::shapes`].
//!
//! Host memory crosses this interface in four places: weights and batches going in, logits and chosen tokens
//! coming out. Operations report no errors, because a device runs them later: its faults are reported by
//! [`DeviceMemory::download`] and [`Backend::collect`]. Shapes that do not fit are a bug of the caller and
//! panic.
//!
//! Batch invariance is part of the contract: the result of an operation for one row of a buffer (one token)
//! has the same bits for any other rows, and on any number of threads.

mod capability;
pub mod host;
pub mod host_states;
pub mod host_tensor;
mod memory;
mod operands;
mod ops;
mod recurrent;
pub mod rotations;
mod sampling;
mod step;

use std::collections::BTreeSet;
use std::time::Duration;

use throng_core::request::TokenId;
pub use throng_kernels::low_rank::LowRankPart;

use crate::config::DecoderConfig;
pub use crate::shapes::{AttentionShape, Columns, HeadColumns, RowGroups, StepShape};

pub use capability::Capability;
use host::{HostThreads, OneThread, PackedWeights};
pub use memory::{BlockCopy, DeviceBlockLayout, DeviceMemory, Expert, Linear, MatrixRole};
pub use operands::{
    AttentionQueries, GatedMlp, IndexQueries, MlpScratch, Norm, RelativeScores, Router, Scratch, SplitColumns,
};
pub use ops::DeviceOps;
pub use recurrent::{
    Conv, ConvWeights, DeltaNet, DeltaWeights, LayerStates, RecurrentOps, StateSpace, StateSpaceWeights,
    state_ranges,
};
pub use sampling::{SampledRows, SamplingRow, WantedToken};
pub use step::Ticket;

/// A device that runs a decoder. Every method has a default body, which is right for a device that runs a
/// Llama, each operation at once, and leaves sampling to the host.
pub trait Backend: DeviceOps + RecurrentOps {
    /// Whether the device has a capability that not every decoder needs.
    fn has(&self, _capability: Capability) -> bool {
        false
    }

    /// Whether the device can run a decoder; called before any of its weights is read.
    ///
    /// # Errors
    /// The capabilities that the device lacks.
    fn supports(&self, config: &DecoderConfig) -> Result<(), BackendError> {
        let mut lacking = Capability::needed_by(config);
        lacking.retain(|&capability| !self.has(capability));
        if lacking.is_empty() { Ok(()) } else { Err(BackendError::Lacks(lacking)) }
    }

    /// Maximum number of steps that may be submitted and not collected
    /// [`MAX_STEPS_IN_FLIGHT`](throng_core::scheduling::executor::MAX_STEPS_IN_FLIGHT). More than 1 is for
    /// devices that run operations later and choose tokens: then the host plans the next step while the
    /// device runs one.
    fn max_steps_in_flight(&self) -> usize {
        1
    }

    /// Announces the layers of a step, whose operations follow up to [`Self::end_layers`]. For all announced
    /// steps of one shape they are the same operations on the same buffers, with no more rows than the shape
    /// has. So a device may record them and, at a later step, replay them and return `true`: then neither the
    /// operations nor `end_layers` follow. Layers with adapters, or whose activations are read in between,
    /// are not announced.
    fn begin_layers(&mut self, _shape: StepShape) -> bool {
        false
    }

    /// Time in exchanges with other devices so far, waiting for them included.
    fn exchanging(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether the step can no longer succeed, so that the rest of it may be left out.
    fn has_failed(&self) -> bool {
        false
    }

    /// Ends the layers that [`Self::begin_layers`] announced.
    fn end_layers(&mut self) {}

    /// Whether the device answers such a row, with the rules and the random numbers of [`crate::sampler`].
    /// The other rows of a step are the host's, which downloads their logits.
    fn samples(&self, _row: &SamplingRow<'_>) -> bool {
        false
    }

    /// Chooses tokens for some rows of `logits`, in increasing order, which are all rows that the device
    /// [samples](Self::samples), and keeps the results on the device. The other rows keep their values of
    /// that time. A row with a NaN, or without an allowed token, gets [`NO_TOKEN`].
    fn sample(&mut self, _logits: &mut Self::Buffer, _rows: &mut dyn Iterator<Item = SamplingRow<'_>>) {
        unreachable!("a device that samples no row was given some");
    }

    /// Ends the step that the operations since the last call belong to, and never waits. If the device
    /// answered all rows of the step, the next one may read its tokens before the host has collected them,
    /// see [`CarriedToken`](crate::batch_input::CarriedToken).
    fn submit(&mut self) -> Ticket {
        Ticket::default()
    }

    /// Waits until the step has finished and appends the results of [`Self::sample`] in it to `sampled`.
    /// Tickets are collected in the order in which they were returned.
    ///
    /// # Errors
    /// When an operation of the step or of one before it failed on the device.
    fn collect(&mut self, _ticket: Ticket, _sampled: &mut SampledRows) -> Result<(), BackendError> {
        Ok(())
    }

    /// The threads of the host that work for this backend: for sampling from downloaded logits, and for
    /// quantizing weights.
    fn host_threads(&self) -> &dyn HostThreads {
        &OneThread
    }

    /// The weights in the backend's own layout, if a file can keep them for the next start.
    fn packed_weights(&self) -> Option<&dyn PackedWeights<Self::Matrix>> {
        None
    }
}

/// Token in place of one that could not be chosen.
pub const NO_TOKEN: TokenId = TokenId::MAX;

/// Reason why a device refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The device's memory does not suffice.
    #[error("no memory for {what} ({n_bytes} bytes)")]
    OutOfMemory {
        /// Object that was to be allocated.
        what: &'static str,
        /// Bytes of the object.
        n_bytes: usize,
    },
    /// The decoder needs capabilities that the device does not have.
    #[error("this backend has no {}", listed(.0))]
    Lacks(BTreeSet<Capability>),
    /// The backend does not support this operation or cannot hold these weights.
    #[error("this backend cannot do {0}")]
    Unsupported(String),
    /// The device or its driver failed.
    #[error("the device failed: {0}")]
    Device(String),
    /// Another process that has a part of the model no longer takes part.
    #[error("{0}")]
    PeerLost(String),
}

impl BackendError {
    /// The device lacks one capability.
    pub fn lacks(capability: Capability) -> Self {
        Self::Lacks(BTreeSet::from([capability]))
    }
}

fn listed(capabilities: &BTreeSet<Capability>) -> String {
    capabilities.iter().map(Capability::to_string).collect::<Vec<_>>().join(", ")
}
