//! Layers with a recurrent state against the reference, on every instruction set: odd sizes, tokens divided
//! into steps and spans in any way, states that are copied, kept and begun anew.

use crate::support::Random;
use throng_kernels::Isa;
use throng_kernels::recurrent::{
    GateScratch, StateLayer, StateLayerShape, StateSpan, gated_delta_net, short_conv, state_space,
};
use throng_kernels::reference::{
    self, ConvWeights, DeltaShape, DeltaWeights, StateSpaceShape, StateSpaceWeights,
};
use throng_kernels::threads::ThreadPool;

/// Sums of up to some hundred products of numbers about 1, in another order and with fused multiply-add.
const TOLERANCE: f32 = 2e-4;

fn numbers(rng: &mut Random, n: usize) -> Vec<f32> {
    rng.normals(n).iter().map(|x| 0.5 * x).collect()
}

fn coin(rng: &mut Random) -> bool {
    rng.below(2) == 0
}

enum Layer {
    Conv,
    Delta(DeltaShape),
    Space(StateSpaceShape),
}

/// A layer with random weights.
struct Case {
    layer: Layer,
    n_channels: usize,
    kernel: usize,
    input_width: usize,
    width: usize,
    /// Heads, rows and columns of each head's matrix.
    heads: (usize, usize, usize),
    n_key_heads: usize,
    taps: Vec<f32>,
    bias: Vec<f32>,
    rates: Vec<f32>,
    times: Vec<f32>,
    skip: Vec<f32>,
    gain: Vec<f32>,
}

impl Case {
    fn random(rng: &mut Random) -> Self {
        let kernel = 2 + rng.below(4);
        let (layer, n_channels, input_width, width, heads, n_key_heads) = match rng.below(3) {
            0 => {
                let n = 1 + rng.below(69);
                (Layer::Conv, n, 3 * n, n, (0, 0, 0), 0)
            }
            1 => {
                let (n_key_heads, key_dim, value_dim) =
                    (1 + rng.below(3), 1 + rng.below(39), 1 + rng.below(39));
                let n_value_heads = n_key_heads * (1 + rng.below(2));
                let is_tiled = coin(rng);
                let shape = DeltaShape { n_key_heads, is_tiled, n_value_heads, key_dim, value_dim, kernel };
                let heads = (n_value_heads, key_dim, value_dim);
                let widths = (shape.input_width(), shape.value_width());
                (Layer::Delta(shape), shape.n_channels(), widths.0, widths.1, heads, n_key_heads)
            }
            _ => {
                let (n_groups, head_dim, state_dim) =
                    (1 + rng.below(3), 1 + rng.below(39), 1 + rng.below(39));
                let n_heads = n_groups * (1 + rng.below(3));
                let shape = StateSpaceShape {
                    n_heads,
                    head_dim,
                    n_groups,
                    state_dim,
                    kernel,
                    n_norm_groups: [0, 1, n_groups][rng.below(3)],
                    time_limits: if coin(rng) { [0.0, f32::INFINITY] } else { [0.3, 0.9] },
                };
                let heads = (n_heads, state_dim, head_dim);
                let widths = (shape.input_width(), shape.width());
                (Layer::Space(shape), shape.n_channels(), widths.0, widths.1, heads, n_groups)
            }
        };
        let gain_len = if let Layer::Delta(shape) = &layer { shape.value_dim } else { width };
        Self {
            layer,
            n_channels,
            kernel,
            input_width,
            width,
            heads,
            n_key_heads,
            taps: numbers(rng, kernel * n_channels),
            bias: numbers(rng, n_channels),
            rates: numbers(rng, heads.0).iter().map(|rate| -rate.abs()).collect(),
            times: numbers(rng, heads.0),
            skip: numbers(rng, heads.0),
            gain: numbers(rng, gain_len),
        }
    }

    fn shape(&self) -> StateLayerShape {
        let (n_heads, key_dim, value_dim) = self.heads;
        let (n_channels, kernel, n_key_heads) = (self.n_channels, self.kernel, self.n_key_heads);
        StateLayerShape { n_channels, kernel, n_heads, n_key_heads, key_dim, value_dim }
    }

    fn conv(&self) -> ConvWeights<'_> {
        ConvWeights { taps: &self.taps, bias: &self.bias }
    }

    fn delta(&self) -> DeltaWeights<'_> {
        let Self { rates, times, gain, .. } = self;
        DeltaWeights { conv: self.conv(), decay_rate: rates, time_bias: times, norm_gain: gain, eps: 1e-5 }
    }

    fn space(&self) -> StateSpaceWeights<'_> {
        let Self { rates, times, gain, skip, .. } = self;
        StateSpaceWeights {
            conv: self.conv(),
            decay_rate: rates,
            time_bias: times,
            skip,
            norm_gain: gain,
            eps: 1e-5,
        }
    }

    fn run(&self, states: &mut StateLayer, spans: &[StateSpan], x: &[f32], pool: &ThreadPool) -> Vec<f32> {
        let mut out = vec![f32::NAN; x.len() / self.input_width * self.width];
        let (mut x, mut scratch) = (x.to_vec(), GateScratch::default());
        match &self.layer {
            Layer::Conv => short_conv(states, spans, &x, &self.conv(), &mut out, pool),
            Layer::Delta(shape) => {
                gated_delta_net(states, spans, shape, &self.delta(), &mut x, &mut scratch, &mut out, pool);
            }
            Layer::Space(shape) => {
                state_space(states, spans, shape, &self.space(), &mut x, &mut scratch, &mut out, pool);
            }
        }
        out
    }

    fn reference(&self, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len() / self.input_width * self.width];
        let (n_heads, key_dim, value_dim) = self.heads;
        let mut state = vec![0.0; (self.kernel - 1) * self.n_channels + n_heads * key_dim * value_dim];
        match &self.layer {
            Layer::Conv => reference::short_conv(&mut state, x, &self.conv(), &mut out),
            Layer::Delta(shape) => {
                reference::gated_delta_net(&mut state, x, shape, &self.delta(), &mut out);
            }
            Layer::Space(shape) => reference::state_space(&mut state, x, shape, &self.space(), &mut out),
        }
        out
    }
}

/// Sequences that advance by random steps, with copies of states kept on the way and other sequences that go
/// on from those.
#[test]
fn states_agree_with_the_reference_however_tokens_are_divided() {
    const N_SEQUENCES: usize = 3;
    for seed in 0..60 {
        let rng = &mut Random(seed);
        let case = Case::random(rng);
        let lengths: Vec<usize> = (0..N_SEQUENCES).map(|_| 1 + rng.below(39)).collect();
        let inputs: Vec<_> = lengths.iter().map(|&n| numbers(rng, n * case.input_width)).collect();
        let mut bits: Option<Vec<Vec<u32>>> = None;
        for isa in Isa::available() {
            let pool = ThreadPool::with_isa(1 + rng.below(2), isa);
            let mut states = StateLayer::new(case.shape(), 2 * N_SEQUENCES).expect("memory");
            let (mut done, mut outputs) = ([0; N_SEQUENCES], vec![vec![]; N_SEQUENCES]);
            let mut slots = [None; N_SEQUENCES];
            while (0..N_SEQUENCES).any(|i| done[i] < lengths[i]) {
                let (mut spans, mut x, mut order): (Vec<StateSpan>, _, _) = (vec![], vec![], vec![]);
                for i in 0..N_SEQUENCES {
                    if done[i] == lengths[i] {
                        continue;
                    }
                    let n = 1 + rng.below(lengths[i] - done[i]);
                    let first_row = x.len() / case.input_width;
                    x.extend_from_slice(&inputs[i][done[i] * case.input_width..][..n * case.input_width]);
                    order.extend(std::iter::repeat_n(i, n));
                    // Two slots of its own, between which it moves; sometimes it keeps a state on the way.
                    let n_before = if coin(rng) { rng.below(n + 1) } else { n };
                    let first = (2 * i + rng.below(2)) as u32;
                    let from = slots[i];
                    spans.push(StateSpan { first_row, n_rows: n_before, from, to: first, continues: false });
                    slots[i] = Some(first);
                    if n_before < n {
                        let (n_rows, to) = (n - n_before, (2 * i + rng.below(2)) as u32);
                        let first_row = first_row + n_before;
                        spans.push(StateSpan { first_row, n_rows, from: Some(first), to, continues: true });
                        slots[i] = Some(to);
                    }
                    done[i] += n;
                }
                let out = case.run(&mut states, &spans, &x, &pool);
                for (i, out) in order.into_iter().zip(out.chunks_exact(case.width)) {
                    outputs[i].extend_from_slice(out);
                }
            }
            for (i, out) in outputs.iter().enumerate() {
                for (found, expected) in out.iter().zip(case.reference(&inputs[i])) {
                    let is_near = (found - expected).abs() <= TOLERANCE * expected.abs().max(1.0);
                    assert!(is_near, "seed {seed}, {}: {found} for {expected}", isa.name());
                }
            }
            let new_bits = outputs.iter().map(|out| out.iter().map(|y| y.to_bits()).collect()).collect();
            assert!(
                *bits.get_or_insert_with(|| Vec::clone(&new_bits)) == new_bits,
                "seed {seed}, {}",
                isa.name()
            );
        }
    }
}

#[test]
fn copies_are_states() {
    let rng = &mut Random(1);
    let case = Case::random(rng);
    let pool = ThreadPool::new(1);
    let mut states = StateLayer::new(case.shape(), 3).expect("memory");
    let (before, after) = (numbers(rng, 5 * case.input_width), numbers(rng, 4 * case.input_width));
    let span = |n_rows, from, to| [StateSpan { first_row: 0, n_rows, from, to, continues: false }];
    case.run(&mut states, &span(5, None, 2), &before, &pool);
    states.copy(2, 0);
    let outputs = [2, 0].map(|slot| case.run(&mut states, &span(4, Some(slot), 1), &after, &pool));
    assert_eq!(outputs[0], outputs[1]);
    let fresh = case.run(&mut states, &span(4, None, 1), &after, &pool);
    assert_ne!(outputs[0], fresh);
}

#[test]
#[should_panic(expected = "two sequences write one state")]
fn two_sequences_cannot_write_one_state() {
    let case = Case::random(&mut Random(2));
    let mut states = StateLayer::new(case.shape(), 1).expect("memory");
    let span = |first_row| StateSpan { first_row, n_rows: 1, from: None, to: 0, continues: false };
    case.run(&mut states, &[span(0), span(1)], &vec![0.0; 2 * case.input_width], &ThreadPool::new(1));
}

#[test]
#[should_panic(expected = "a state is read and written")]
fn a_sequence_cannot_read_what_another_one_writes() {
    let case = Case::random(&mut Random(3));
    let mut states = StateLayer::new(case.shape(), 2).expect("memory");
    let span = |first_row, from, to| StateSpan { first_row, n_rows: 1, from, to, continues: false };
    let spans = [span(0, Some(1), 0), span(1, None, 1)];
    case.run(&mut states, &spans, &vec![0.0; 2 * case.input_width], &ThreadPool::new(1));
}
