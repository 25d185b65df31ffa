//! Recurrent layers: short convolution, gated delta net, state space model, over two steps with copies of
//! states between them.

use fastrand::Rng;
use throng_core::scheduling::batch::{MemorySlot, SlotCopy};
use throng_model::backend::{Backend, Conv, DeltaNet, LayerStates, StateSpace};
use throng_model::batch_input::{BatchInput, StateSpan};
use throng_model::config::Mixer;
use throng_model::shapes::{DeltaShape, StateSpaceShape};
use throng_model::state_cache::StateLayout;

use super::{Op, batch, buffer, check_op, download, output, random};

/// Bytes of the parts in which states leave a device.
const STATE_PART_BYTES: usize = 300;

/// Sums of some tens of products of numbers up to 1, which a norm may scale up.
const TOLERANCE: f32 = 1e-4;
/// Tokens of a sequence in the first step and in the second.
const N_TOKENS: [usize; 2] = [7, 4];
const EPS: f32 = 1e-5;

struct RecurrentOp {
    mixer: Mixer,
    hidden: usize,
    n_sequences: usize,
    /// `[sequences, 11, input width]`.
    x: Vec<f32>,
    taps: Vec<f32>,
    bias: Vec<f32>,
    rates: Vec<f32>,
    times: Vec<f32>,
    skip: Vec<f32>,
    gain: Vec<f32>,
}

pub(super) fn check_all<B: Backend>(backends: &mut [B], rng: &mut Rng) {
    let delta = DeltaShape {
        n_key_heads: 2,
        is_tiled: false,
        n_value_heads: 4,
        key_dim: 24,
        value_dim: 20,
        kernel: 4,
    };
    let space = StateSpaceShape {
        n_heads: 6,
        head_dim: 24,
        n_groups: 2,
        state_dim: 10,
        kernel: 4,
        n_norm_groups: 2,
        time_limits: [0.0, f32::INFINITY],
    };
    for (mixer, hidden) in [
        (Mixer::ShortConv { kernel: 3, n_channels: None }, 40),
        (Mixer::ShortConv { kernel: 2, n_channels: None }, 9),
        (Mixer::GatedDelta(delta), 40),
        (Mixer::GatedDelta(DeltaShape { is_tiled: true, value_dim: 7, ..delta }), 40),
        (Mixer::StateSpace(space), 40),
        (Mixer::StateSpace(StateSpaceShape { n_norm_groups: 0, ..space }), 40),
        (Mixer::StateSpace(StateSpaceShape { n_norm_groups: 1, time_limits: [0.5, 1.0], ..space }), 40),
    ] {
        for n_sequences in [1, 5] {
            check_op(backends, &RecurrentOp::random(rng, (mixer, hidden), n_sequences));
        }
    }
}

impl RecurrentOp {
    fn random(rng: &mut Rng, (mixer, hidden): (Mixer, usize), n_sequences: usize) -> Self {
        let (input_width, width) = mixer.recurrent_widths(hidden).expect("a recurrent mixer");
        let state = mixer.state(hidden).expect("a recurrent mixer");
        let n_tokens: usize = N_TOKENS.iter().sum();
        Self {
            mixer,
            hidden,
            n_sequences,
            x: random(rng, n_sequences * n_tokens * input_width),
            taps: random(rng, state.kernel * state.n_channels),
            bias: random(rng, state.n_channels),
            rates: random(rng, state.n_heads).iter().map(|rate| -rate.abs()).collect(),
            times: random(rng, state.n_heads),
            skip: random(rng, state.n_heads),
            gain: random(rng, if let Mixer::GatedDelta(shape) = mixer { shape.value_dim } else { width }),
        }
    }

    /// Runs the rows of a step through the layer.
    fn step<B: Backend>(
        &self,
        backend: &mut B,
        states: &mut B::States,
        (rows, spans): (&[usize], Vec<StateSpan>),
    ) -> Vec<f32> {
        let (input_width, width) = self.mixer.recurrent_widths(self.hidden).expect("a recurrent mixer");
        let input = BatchInput { tokens: vec![0; rows.len()], states: spans, ..Default::default() };
        let batch = batch(backend, &input);
        let mut x = buffer(backend, &self.x, input_width, rows);
        let mut out = output(backend, rows.len(), width);
        let vector = |backend: &B, values: &[f32]| backend.vector(values).expect("there is memory");
        let conv = Conv { taps: vector(backend, &self.taps), bias: vector(backend, &self.bias) };
        let [decay_rate, time_bias, skip, norm_gain] =
            [&self.rates, &self.times, &self.skip, &self.gain].map(|values| vector(backend, values));
        let states = LayerStates { all: states, layer_idx: 1 };
        match self.mixer {
            Mixer::GatedDelta(shape) => {
                let net = DeltaNet { shape, conv, decay_rate, time_bias, norm_gain, eps: EPS };
                backend.gated_delta_net(states, &batch, &mut x, &net, &mut out);
            }
            Mixer::StateSpace(shape) => {
                let model = StateSpace { shape, conv, decay_rate, time_bias, skip, norm_gain, eps: EPS };
                backend.state_space(states, &batch, &mut x, &model, &mut out);
            }
            _ => backend.short_conv(states, &batch, &x, &conv, &mut out),
        }
        download(backend, &mut out)
    }
}

impl Op for RecurrentOp {
    fn name(&self) -> String {
        format!("{:?}, {} sequences", self.mixer, self.n_sequences)
    }

    fn n_items(&self) -> usize {
        self.n_sequences
    }

    /// Each sequence moves through slots of its own: the first step keeps a state in between, and the second
    /// continues from a copy of it.
    fn run<B: Backend>(&self, backend: &mut B, items: &[usize]) -> Vec<f32> {
        let state = self.mixer.state(self.hidden);
        let layout = StateLayout { n_slots: 3 * self.n_sequences, layers: vec![None, state] };
        let mut states = backend.states(&layout).expect("there is memory");
        let n_tokens: usize = N_TOKENS.iter().sum();
        let slot = |item: usize, i: usize| (3 * item + i) as u32;
        let (mut rows, mut spans) = (Vec::new(), Vec::new());
        for (i, &item) in items.iter().enumerate() {
            let (first_row, n_kept) = (i * N_TOKENS[0], 1 + item % N_TOKENS[0]);
            rows.extend((0..N_TOKENS[0]).map(|token| item * n_tokens + token));
            let (from, to) = (None, slot(item, 1));
            spans.push(StateSpan { first_row, n_rows: n_kept, from, to, continues: false });
            spans.push(StateSpan {
                first_row: first_row + n_kept,
                n_rows: N_TOKENS[0] - n_kept,
                from: Some(to),
                to: slot(item, 0),
                continues: true,
            });
        }
        let first = self.step(backend, &mut states, (&rows, spans));
        // Where states can leave the device, every other one goes through the host, in parts.
        let layout = backend.state_layout(&states);
        let (copied, exported): (Vec<_>, Vec<_>) =
            items.iter().partition(|item| layout.is_none() || *item % 2 == 0);
        let copies: Vec<_> = copied
            .into_iter()
            .map(|item| SlotCopy { from: MemorySlot(slot(item, 1)), to: MemorySlot(slot(item, 2)) })
            .collect();
        backend.copy_states(&mut states, &copies);
        let n_bytes = layout.map_or(0, |layout| layout.n_bytes);
        for item in exported {
            for start in (0..n_bytes).step_by(STATE_PART_BYTES) {
                let (mut bytes, end) = (Vec::new(), n_bytes.min(start + STATE_PART_BYTES));
                let from = slot(item, 1);
                backend.export_state(&states, from, start..end, &mut bytes).expect("it can leave");
                backend.import_state(&mut states, slot(item, 2), start, &bytes).expect("it fits");
            }
        }
        let (mut rows, mut spans) = (Vec::new(), Vec::new());
        for (i, &item) in items.iter().enumerate() {
            let (first_row, to) = (i * N_TOKENS[1], slot(item, 2));
            rows.extend((N_TOKENS[0]..n_tokens).map(|token| item * n_tokens + token));
            spans.push(StateSpan { first_row, n_rows: N_TOKENS[1], from: Some(to), to, continues: false });
        }
        let second = self.step(backend, &mut states, (&rows, spans));
        let of_item = |i: usize| {
            let parts = [(&first, N_TOKENS[0]), (&second, N_TOKENS[1])];
            parts.into_iter().flat_map(move |(out, n)| {
                let width = out.len() / items.len() / n;
                out[i * n * width..(i + 1) * n * width].to_vec()
            })
        };
        (0..items.len()).flat_map(of_item).collect()
    }

    fn tolerances(&self, reference: &[f32]) -> Vec<f32> {
        reference.iter().map(|value| TOLERANCE * value.abs().max(1.0)).collect()
    }
}
