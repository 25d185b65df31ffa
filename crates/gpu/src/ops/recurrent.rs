//! Layers with a recurrent state. Each sequence's tokens are processed in order by the same threads.

use std::ops::Range;
use std::sync::Arc;

use throng_core::scheduling::batch::SlotCopy;
use throng_model::backend::{
    BackendError, BlockCopy, Conv, DeltaNet, DeviceBlockLayout, LayerStates, RecurrentOps, StateSpace,
    state_ranges,
};
use throng_model::state_cache::StateLayout;

use crate::GpuBackend;
use crate::batch::{Batch, DerivedKey};
use crate::buffers::{Buffer, Vector, rounds};
use crate::device::Storage;
use crate::kernel::Kernel;
use crate::recorder::linear_groups;

/// Layout of exported states: window and matrices of each layer.
const STATE_LAYOUT: &str = "gpu-states-1";

/// The states of all layers.
#[derive(Debug)]
pub struct States {
    layers: Vec<Option<StateLayer>>,
}

/// States of a layer: for each slot the window of the convolution, then the matrix of each head.
#[derive(Debug)]
struct StateLayer {
    storage: Storage,
    /// Elements of a slot, and of its window.
    slot: usize,
    window: usize,
}

impl StateLayer {
    /// Bytes of a slot.
    fn slot_bytes(&self) -> usize {
        self.slot * size_of::<f32>()
    }
}

/// The convolution before a recurrence, or a short convolution.
struct Convolution<'a> {
    n_channels: usize,
    first_col: usize,
    conv: &'a Conv<GpuBackend>,
    kernel: usize,
    out: Option<&'a Buffer>,
}

/// A recurrence: its numbers as the kernel takes them, bounds of time, rates of decay, biases of time, and
/// factors of inputs that heads add to their outputs.
struct Scan<'a> {
    numbers: [usize; 14],
    limits: [f32; 2],
    weights: [&'a Vector; 3],
    is_delta: bool,
}

/// A norm of a recurrence's output with its gates.
struct GatedNorm<'a> {
    n_groups: usize,
    width: usize,
    gate_col: usize,
    gain: &'a Vector,
    gain_stride: usize,
    order: u32,
    eps: f32,
}

impl RecurrentOps for GpuBackend {
    type States = States;

    fn states(&self, layout: &StateLayout) -> Result<States, BackendError> {
        let mut layers = Vec::new();
        for shape in &layout.layers {
            let Some(shape) = shape else {
                layers.push(None);
                continue;
            };
            let window = shape.kernel.saturating_sub(1) * shape.n_channels;
            let slot = window + shape.n_heads * shape.key_dim * shape.value_dim;
            let n_bytes = slot.checked_mul(layout.n_slots).and_then(|n| n.checked_mul(4));
            let storage = self.device.storage("recurrent states", n_bytes.unwrap_or(usize::MAX))?;
            layers.push(Some(StateLayer { storage, slot, window }));
        }
        Ok(States { layers })
    }

    fn copy_states(&mut self, states: &mut States, copies: &[SlotCopy]) {
        let copies: Vec<_> =
            copies.iter().map(|copy| BlockCopy { from: copy.from.0, to: copy.to.0 }).collect();
        for round in rounds(&copies) {
            let words: Vec<u32> = round.iter().flat_map(|copy| [copy.from, copy.to]).collect();
            let table = self.device.storage_or_empty("copies of states", size_of_val(&*words));
            self.device.queue.write_buffer(&table.buffer, 0, bytemuck::cast_slice(&words));
            for layer in states.layers.iter().flatten() {
                let n = round.len() * layer.slot;
                let params = [n as u32, layer.slot as u32];
                let buffers = [&layer.storage, &table];
                self.recorder.run(Kernel::CopyBlocks, &buffers, &params, linear_groups(n.div_ceil(64)));
            }
        }
    }

    fn state_layout(&self, states: &States) -> Option<DeviceBlockLayout> {
        let n_bytes = states.layers.iter().flatten().map(StateLayer::slot_bytes).sum();
        Some(DeviceBlockLayout { name: STATE_LAYOUT, n_bytes })
    }

    fn export_state(
        &mut self,
        states: &States,
        slot: u32,
        range: Range<usize>,
        bytes: &mut Vec<u8>,
    ) -> Result<(), BackendError> {
        let layers: Vec<_> = states.layers.iter().flatten().collect();
        let start = bytes.len();
        bytes.resize(start + range.len(), 0);
        let of_layer = |(i, range): (usize, Range<usize>)| {
            let at = slot as usize * layers[i].slot_bytes();
            (&layers[i].storage, at + range.start..at + range.end)
        };
        let ranges = state_ranges(layers.iter().map(|layer| layer.slot_bytes()), range);
        let ranges: Vec<_> = ranges.into_iter().map(of_layer).collect();
        self.read(&ranges, &mut bytes[start..])
    }

    fn import_state(
        &mut self,
        states: &mut States,
        slot: u32,
        start: usize,
        mut bytes: &[u8],
    ) -> Result<(), BackendError> {
        self.recorder.submit();
        let layers: Vec<_> = states.layers.iter().flatten().collect();
        let sizes = layers.iter().map(|layer| layer.slot_bytes());
        for (i, range) in state_ranges(sizes, start..start + bytes.len()) {
            let (these, others) = bytes.split_at(range.len());
            let at = slot as usize * layers[i].slot_bytes() + range.start;
            self.device.queue.write_buffer(&layers[i].storage.buffer, at as u64, these);
            bytes = others;
        }
        self.device.check()
    }

    fn short_conv(
        &mut self,
        states: LayerStates<'_, Self>,
        batch: &Batch,
        x: &Buffer,
        conv: &Conv<Self>,
        out: &mut Buffer,
    ) {
        let layer = layer(&states);
        let n_channels = out.cols;
        let kernel = layer.window / n_channels + 1;
        let convolution = Convolution { n_channels, first_col: 0, conv, kernel, out: Some(out) };
        self.run_conv(layer, batch, x, &convolution);
    }

    fn gated_delta_net(
        &mut self,
        states: LayerStates<'_, Self>,
        batch: &Batch,
        x: &mut Buffer,
        net: &DeltaNet<Self>,
        out: &mut Buffer,
    ) {
        let (layer, shape) = (layer(&states), &net.shape);
        let n_channels = shape.n_channels();
        let conv = Convolution { n_channels, first_col: 0, conv: &net.conv, kernel: shape.kernel, out: None };
        self.run_conv(layer, batch, x, &conv);
        let gate_col = n_channels;
        let beta_col = n_channels + shape.value_width();
        let numbers = [
            shape.n_value_heads,
            shape.key_dim,
            shape.value_dim,
            x.cols,
            out.cols,
            0,
            shape.key_width(),
            2 * shape.key_width(),
            beta_col,
            beta_col + shape.n_value_heads,
            shape.n_key_heads,
            usize::from(shape.is_tiled),
            layer.slot,
            layer.window,
        ];
        let weights = [&net.decay_rate, &net.time_bias, &net.time_bias];
        let scan = Scan { numbers, limits: [0.0, f32::MAX], weights, is_delta: true };
        self.run_scan(layer, batch, x, &scan, out);
        let norm = GatedNorm {
            n_groups: shape.n_value_heads,
            width: shape.value_dim,
            gate_col,
            gain: &net.norm_gain,
            gain_stride: 0,
            order: 0,
            eps: net.eps,
        };
        self.run_gated_norm(x, &norm, out);
    }

    fn state_space(
        &mut self,
        states: LayerStates<'_, Self>,
        batch: &Batch,
        x: &mut Buffer,
        model: &StateSpace<Self>,
        out: &mut Buffer,
    ) {
        let (layer, shape) = (layer(&states), &model.shape);
        let (width, n_channels) = (shape.width(), shape.n_channels());
        let conv =
            Convolution { n_channels, first_col: width, conv: &model.conv, kernel: shape.kernel, out: None };
        self.run_conv(layer, batch, x, &conv);
        let numbers = [
            shape.n_heads,
            shape.state_dim,
            shape.head_dim,
            x.cols,
            out.cols,
            2 * width + shape.n_groups * shape.state_dim,
            2 * width,
            width,
            0,
            width + n_channels,
            shape.n_groups,
            0,
            layer.slot,
            layer.window,
        ];
        let [least, most] = shape.time_limits;
        let weights = [&model.decay_rate, &model.time_bias, &model.skip];
        let scan = Scan { numbers, limits: [least, most.min(f32::MAX)], weights, is_delta: false };
        self.run_scan(layer, batch, x, &scan, out);
        let n_groups = shape.n_norm_groups.max(1);
        let norm = GatedNorm {
            n_groups,
            width: width / n_groups,
            gate_col: 0,
            gain: &model.norm_gain,
            gain_stride: width / n_groups,
            order: if shape.n_norm_groups == 0 { 2 } else { 1 },
            eps: model.eps,
        };
        self.run_gated_norm(x, &norm, out);
    }
}

fn layer<'a>(states: &'a LayerStates<'_, GpuBackend>) -> &'a StateLayer {
    states.all.layers[states.layer_idx].as_ref().expect("a layer with a state")
}

/// The spans of each sequence, one after the other: the offset of each sequence's chain, then the spans, each
/// with its first row, its rows, the slot that it reads plus 1, and the slot that it writes.
fn chains(batch: &Batch) -> (Arc<Storage>, usize) {
    batch.derive(DerivedKey::Chains, || {
        let spans = &batch.input.states;
        let starts: Vec<usize> = (0..spans.len()).filter(|&i| !spans[i].continues).collect();
        let first = starts.len() + 1;
        let ends = starts.iter().copied().chain([spans.len()]);
        let mut words: Vec<u32> = ends.map(|i| (first + 4 * i) as u32).collect();
        for span in spans {
            let from = span.from.map_or(0, |from| from + 1);
            words.extend([span.first_row as u32, span.n_rows as u32, from, span.to]);
        }
        (words, starts.len())
    })
}

impl GpuBackend {
    fn run_conv(&mut self, layer: &StateLayer, batch: &Batch, x: &Buffer, conv: &Convolution<'_>) {
        let (chains, n_chains) = chains(batch);
        let n = n_chains * conv.n_channels;
        let out_stride = conv.out.map_or(0, |out| out.cols);
        let numbers = [conv.n_channels, n, conv.kernel, x.cols, conv.first_col, out_stride, layer.slot, 0];
        let params = numbers.map(|number| number as u32);
        let mut buffers = vec![&x.storage, &conv.conv.taps.0, &conv.conv.bias.0, &layer.storage, &*chains];
        buffers.extend(conv.out.map(|out| &out.storage));
        let kernel = Kernel::Conv { is_short: conv.out.is_some() };
        self.recorder.run(kernel, &buffers, &params, linear_groups(n.div_ceil(64)));
    }

    fn run_scan(&mut self, layer: &StateLayer, batch: &Batch, x: &Buffer, scan: &Scan<'_>, out: &Buffer) {
        let Scan { numbers, limits, weights: [rates, times, skip], is_delta } = *scan;
        let (chains, n_chains) = chains(batch);
        let mut params = [0; 17];
        params[..14].copy_from_slice(&numbers.map(|number| number as u32));
        params[14..16].copy_from_slice(&limits.map(f32::to_bits));
        params[16] = n_chains as u32;
        let buffers = [&x.storage, &rates.0, &times.0, &skip.0, &layer.storage, &*chains, &out.storage];
        let groups = [numbers[0] as u32, n_chains as u32, 1];
        self.recorder.run(Kernel::Scan { is_delta }, &buffers, &params, groups);
    }

    fn run_gated_norm(&mut self, x: &Buffer, norm: &GatedNorm<'_>, out: &Buffer) {
        let n = out.n_rows * norm.n_groups;
        let numbers = [n, norm.n_groups, norm.width, out.cols, x.cols, norm.gate_col, norm.gain_stride];
        let mut params = [0; 9];
        params[..7].copy_from_slice(&numbers.map(|number| number as u32));
        params[7] = norm.order;
        params[8] = norm.eps.to_bits();
        let buffers = [&out.storage, &x.storage, &norm.gain.0];
        self.recorder.run(Kernel::GatedNorm, &buffers, &params, linear_groups(n));
    }
}
