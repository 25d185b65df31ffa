//! What a device must do for layers with a recurrent state: hold the states and run tokens through them. Does
//! not know attention.

use throng_core::scheduling::batch::SlotCopy;
pub use throng_kernels::reference::{ConvWeights, DeltaWeights, StateSpaceWeights};

use super::{BackendError, Capability, DeviceMemory};
use crate::shapes::{DeltaShape, StateSpaceShape};
use crate::state_cache::StateLayout;

/// States and operations of recurrent layers. An operation runs the tokens of each sequence in order through
/// its state, as the spans of the batch say ([`BatchInput::states`](crate::batch_input::BatchInput::states));
/// the result has the same bits however tokens were divided into steps and spans. The formulas are those of
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
