//! Speed of the recurrent mixers on one thread: many tokens of one sequence beside the f32 peak of the
//! registers, one token of each of some sequences beside the bandwidth of reading their states. Processor
//! time; convolution, gates and norms are included.
//!
//! `cargo bench -p throng-kernels --bench recurrent [-- ISA]`

mod support;

use std::hint::black_box;

use support::median;
use throng_kernels::Isa;
use throng_kernels::limits::{Arithmetic, Pages, ReadBuffer, RegisterLoop};
use throng_kernels::recurrent::{
    GateScratch, StateLayer, StateLayerShape, StateSpan, gated_delta_net, state_space,
};
use throng_kernels::reference::{ConvWeights, DeltaShape, DeltaWeights, StateSpaceShape, StateSpaceWeights};
use throng_kernels::threads::ThreadPool;

/// Tokens of the prompt.
const PROMPT: usize = 512;
/// Numbers of sequences that decode: the states of all but the first are larger than the caches.
const SEQUENCES: [usize; 3] = [1, 16, 64];

enum Mixer {
    Delta(DeltaShape),
    Space(StateSpaceShape),
}

/// A mixer's sizes: its state, columns of input and output, elements of the gain.
struct Sizes {
    state: StateLayerShape,
    widths: [usize; 2],
    gain: usize,
}

impl Mixer {
    fn sizes(&self) -> Sizes {
        let (n_channels, kernel, widths, gain, [n_heads, n_key_heads, key_dim, value_dim]) = match self {
            Self::Delta(s) => {
                let heads = [s.n_value_heads, s.n_key_heads, s.key_dim, s.value_dim];
                (s.n_channels(), s.kernel, [s.input_width(), s.value_width()], s.value_dim, heads)
            }
            Self::Space(s) => {
                let heads = [s.n_heads, s.n_groups, s.state_dim, s.head_dim];
                (s.n_channels(), s.kernel, [s.input_width(), s.width()], s.width(), heads)
            }
        };
        Sizes {
            state: StateLayerShape { n_channels, kernel, n_heads, n_key_heads, key_dim, value_dim },
            widths,
            gain,
        }
    }

    /// Multiplications and additions of one token that a recurrence needs: the state is multiplied with the
    /// query, and with the key where the rule is the delta rule, and a product is added to it.
    fn operations(&self) -> usize {
        let StateLayerShape { n_heads, key_dim, value_dim, .. } = self.sizes().state;
        let passes = if matches!(self, Self::Delta(_)) { 3 } else { 2 };
        2 * passes * n_heads * key_dim * value_dim
    }
}

/// Seconds of a step that runs `n_rows` tokens of each of `n` sequences.
fn step(mixer: &Mixer, (n, n_rows): (usize, usize), pool: &ThreadPool) -> f64 {
    let Sizes { state, widths: [input, output], gain } = mixer.sizes();
    let numbers = |n: usize| (0..n).map(|i| (i * 37 % 61) as f32 / 61.0 - 0.5).collect::<Vec<_>>();
    let (taps, bias) = (numbers(state.kernel * state.n_channels), numbers(state.n_channels));
    let conv = ConvWeights { taps: &taps, bias: &bias };
    let (rates, times) = (vec![-0.1; state.n_heads], numbers(state.n_heads));
    let (norm_gain, x) = (numbers(gain), numbers(n * n_rows * input));
    let mut layer = StateLayer::new(state, n).expect("memory");
    let mut spans: Vec<StateSpan> = (0..n)
        .map(|i| StateSpan { first_row: i * n_rows, n_rows, from: None, to: i as u32, continues: false })
        .collect();
    let (mut out, mut work) = (vec![0.0; n * n_rows * output], x.clone());
    let mut scratch = GateScratch::default();
    let mut run = || {
        work.copy_from_slice(&x);
        let x = &mut work[..];
        match mixer {
            Mixer::Delta(shape) => {
                let (decay_rate, time_bias) = (&rates[..], &times[..]);
                let weights = DeltaWeights { conv, decay_rate, time_bias, norm_gain: &norm_gain, eps: 1e-6 };
                gated_delta_net(&mut layer, &spans, shape, &weights, x, &mut scratch, &mut out, pool);
            }
            Mixer::Space(shape) => {
                let (decay_rate, time_bias, skip) = (&rates[..], &times[..], &rates[..]);
                let (norm_gain, eps) = (&norm_gain[..], 1e-6);
                let weights = StateSpaceWeights { conv, decay_rate, time_bias, skip, norm_gain, eps };
                state_space(&mut layer, &spans, shape, &weights, x, &mut scratch, &mut out, pool);
            }
        }
        spans.iter_mut().for_each(|span| span.from = Some(span.to));
    };
    // Sixteen steps of one token, so that all positions within a block of tokens count alike.
    let n_steps = if n_rows == 1 { 16 } else { 1 };
    let seconds = median(|| (0..n_steps).for_each(|_| run()));
    black_box(&out);
    seconds / f64::from(n_steps)
}

/// Gigaoperations of f32, and gigabytes read, a second and thread.
fn limits() -> (f64, f64) {
    let pool = ThreadPool::new(1);
    let buffer = ReadBuffer::new(1 << 30, Pages::Huge, &pool).expect("fits");
    let reading = median(|| {
        black_box(buffer.read(1, &pool));
    });
    let peak = RegisterLoop::best(Arithmetic::F32);
    let computing = median(|| {
        black_box(peak.run(10_000_000));
    });
    (peak.operations() * 1e7 / computing / 1e9, buffer.n_bytes() as f64 / reading / 1e9)
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let (peak, bandwidth) = limits();
    println!("limits of one thread: {peak:.0} Gflop/s of f32, {bandwidth:.1} GB/s read");
    let (kernel, key_dim, value_dim) = (4, 128, 128);
    let (n_key_heads, n_value_heads) = (16, 32);
    let delta = DeltaShape { n_key_heads, is_tiled: false, n_value_heads, key_dim, value_dim, kernel };
    let (n_heads, head_dim, n_groups, state_dim) = (64, 64, 8, 128);
    let (n_norm_groups, time_limits) = (8, [0.0, f32::INFINITY]);
    let space =
        StateSpaceShape { n_heads, head_dim, n_groups, state_dim, kernel, n_norm_groups, time_limits };
    let mixers = [
        ("delta net of Qwen 3.5 35B-A3B", Mixer::Delta(delta)),
        ("Mamba-2 of Nemotron 3 Nano", Mixer::Space(space)),
    ];
    for isa in Isa::available().into_iter().rev() {
        if !wanted.is_empty() && !wanted.iter().any(|name| isa.name() == name) {
            continue;
        }
        let pool = ThreadPool::with_isa(1, isa);
        for (name, mixer) in &mixers {
            let state = mixer.sizes().state;
            let prompt = step(mixer, (1, PROMPT), &pool) / PROMPT as f64;
            let rate = mixer.operations() as f64 / prompt / 1e9;
            print!(
                "{:13} {name}: prompt {:.1} us a token, {rate:.0} Gflop/s ({:.0} %); decode",
                isa.name(),
                prompt * 1e6,
                100.0 * rate / peak
            );
            let n_bytes = size_of::<f32>() * state.n_heads * state.key_dim * state.value_dim;
            for n in SEQUENCES {
                let one = step(mixer, (n, 1), &pool) / n as f64;
                let read = n_bytes as f64 / one / 1e9;
                print!(
                    " {n}: {:.1} us a token, {read:.1} GB/s ({:.0} %);",
                    one * 1e6,
                    100.0 * read / bandwidth
                );
            }
            println!();
        }
    }
}
