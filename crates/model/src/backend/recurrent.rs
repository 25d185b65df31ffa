//! Operations for layers with a recurrent state: hold the states and run tokens through them. Does not know
//! attention.

use std::ops::Range;

use throng_core::scheduling::batch::SlotCopy;
pub use throng_kernels::reference::{ConvWeights, DeltaWeights, StateSpaceWeights};

use super::{BackendError, Capability, DeviceBlockLayout, DeviceMemory};
use crate::shapes::{DeltaShape, StateSpaceShape};
use crate::state_cache::StateLayout;

/// States and operations of recurrent layers. An operation runs the tokens of each sequence in order through
/// its state, by the spans of the batch ([`BatchInput::states`](crate::batch_input::BatchInput::states)); the
/// result has the same bits for every division of tokens into steps and spans. The formulas are those of
/// [`throng_kernels::reference`]. A device that runs no such layers implements nothing here.
pub trait RecurrentOps: DeviceMemory {
    /// The states of all layers.
    type States: Send;

    /// States of arbitrary content.
    ///
    /// # Errors
    /// When memory does not suffice or the device does not support the layout.
    fn states(&self, _layout: &StateLayout) -> Result<Self::States, BackendError> {
        Err(BackendError::Unsupported("recurrent states".to_owned()))
    }

    /// Copies states over all layers, one copy after the other.
    fn copy_states(&mut self, _states: &mut Self::States, _copies: &[SlotCopy]) {
        unreachable!("a device without recurrent states was given some");
    }

    /// The layout of a slot's bytes over all layers; `None`: states cannot leave this device.
    fn state_layout(&self, _states: &Self::States) -> Option<DeviceBlockLayout> {
        None
    }

    /// Appends this range of a slot's bytes to `bytes`, once all operations before have finished.
    ///
    /// # Errors
    /// When states cannot leave this device, or an earlier operation failed on it.
    fn export_state(
        &mut self,
        _states: &Self::States,
        _slot: u32,
        _range: Range<usize>,
        _bytes: &mut Vec<u8>,
    ) -> Result<(), BackendError> {
        Err(BackendError::Unsupported("states that leave the device".to_owned()))
    }

    /// Overwrites a slot's bytes from `start` on.
    ///
    /// # Errors
    /// Errors of [`Self::export_state`].
    fn import_state(
        &mut self,
        _states: &mut Self::States,
        _slot: u32,
        _start: usize,
        _bytes: &[u8],
    ) -> Result<(), BackendError> {
        Err(BackendError::Unsupported("states from elsewhere".to_owned()))
    }

    /// The gated short convolution: `[n, 3 * channels] → [n, channels]`.
    fn short_conv(
        &mut self,
        _states: LayerStates<'_, Self>,
        _batch: &Self::Batch,
        _x: &Self::Buffer,
        _conv: &Conv<Self>,
        _out: &mut Self::Buffer,
    ) {
        Capability::ShortConv.is_missing()
    }

    /// A gated delta net: `[n, shape.input_width()] → [n, shape.value_width()]`. The contents of `x` are
    /// unspecified afterwards.
    fn gated_delta_net(
        &mut self,
        _states: LayerStates<'_, Self>,
        _batch: &Self::Batch,
        _x: &mut Self::Buffer,
        _net: &DeltaNet<Self>,
        _out: &mut Self::Buffer,
    ) {
        Capability::GatedDelta.is_missing()
    }

    /// A state space model: `[n, shape.input_width()] → [n, shape.width()]`. The contents of `x` are
    /// unspecified afterwards.
    fn state_space(
        &mut self,
        _states: LayerStates<'_, Self>,
        _batch: &Self::Batch,
        _x: &mut Self::Buffer,
        _model: &StateSpace<Self>,
        _out: &mut Self::Buffer,
    ) {
        Capability::StateSpace.is_missing()
    }
}

/// The parts of a range over the states of several layers, one after the other, which have `n_bytes`: index
/// of each layer and range within its state.
pub fn state_ranges(
    n_bytes: impl IntoIterator<Item = usize>,
    range: Range<usize>,
) -> Vec<(usize, Range<usize>)> {
    let mut end = 0;
    let within = |(i, n): (usize, usize)| {
        let first = end;
        end += n;
        let part = range.start.clamp(first, first + n) - first..range.end.clamp(first, first + n) - first;
        (!part.is_empty()).then_some((i, part))
    };
    n_bytes.into_iter().enumerate().filter_map(within).collect()
}

/// The states of one layer among those of all.
#[derive(Debug)]
pub struct LayerStates<'a, B: RecurrentOps> {
    /// The states of all layers.
    pub all: &'a mut B::States,
    /// Index of the layer.
    pub layer_idx: usize,
}

/// A depthwise causal convolution.
pub struct Conv<B: DeviceMemory> {
    /// `[kernel, channels]`: the factors of the oldest token first.
    pub taps: B::Vector,
    /// `[channels]`.
    pub bias: B::Vector,
}

/// A gated delta net.
pub struct DeltaNet<B: DeviceMemory> {
    /// Sizes of the layer.
    pub shape: DeltaShape,
    /// Convolution over queries, keys and values.
    pub conv: Conv<B>,
    /// The logarithm of the decay a unit of time, for each head of values.
    pub decay_rate: B::Vector,
    /// Bias that is added to the time before softplus.
    pub time_bias: B::Vector,
    /// Gain of the norm of each head of the output.
    pub norm_gain: B::Vector,
    /// Epsilon that is added to the mean square.
    pub eps: f32,
}

/// A state space model.
pub struct StateSpace<B: DeviceMemory> {
    /// Sizes of the layer.
    pub shape: StateSpaceShape,
    /// Convolution over heads, written and read columns.
    pub conv: Conv<B>,
    /// The logarithm of the decay a unit of time, for each head.
    pub decay_rate: B::Vector,
    /// Bias that is added to the time before softplus.
    pub time_bias: B::Vector,
    /// Factor of its input that a head adds to its output.
    pub skip: B::Vector,
    /// Gain of the norm of the output.
    pub norm_gain: B::Vector,
    /// Epsilon that is added to the mean square.
    pub eps: f32,
}

impl<B: DeviceMemory<Vector = Vec<f32>>> Conv<B> {
    /// The weights for functions of host memory.
    pub fn on_host(&self) -> ConvWeights<'_> {
        ConvWeights { taps: &self.taps, bias: &self.bias }
    }
}

impl<B: DeviceMemory<Vector = Vec<f32>>> DeltaNet<B> {
    /// The weights for functions of host memory.
    pub fn on_host(&self) -> DeltaWeights<'_> {
        let Self { decay_rate, time_bias, norm_gain, eps, .. } = self;
        DeltaWeights { conv: self.conv.on_host(), decay_rate, time_bias, norm_gain, eps: *eps }
    }
}

impl<B: DeviceMemory<Vector = Vec<f32>>> StateSpace<B> {
    /// The weights for functions of host memory.
    pub fn on_host(&self) -> StateSpaceWeights<'_> {
        let Self { decay_rate, time_bias, skip, norm_gain, eps, .. } = self;
        StateSpaceWeights { conv: self.conv.on_host(), decay_rate, time_bias, skip, norm_gain, eps: *eps }
    }
}
