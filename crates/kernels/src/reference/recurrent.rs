//! Layers with a recurrent state in plain loops: short convolution, gated delta net, state space model. Each
//! takes the rows of one sequence in order, and its state before them, which becomes the state after them.

use super::rows::{rms_norm, silu};

/// A depthwise causal convolution over the last tokens of each channel.
#[derive(Debug, Clone, Copy)]
pub struct ConvWeights<'a> {
    /// `[kernel, n_channels]`: the factors of the oldest token first, of the token itself last.
    pub taps: &'a [f32],
    /// `[n_channels]`.
    pub bias: &'a [f32],
}

impl ConvWeights<'_> {
    /// Number of channels.
    pub fn n_channels(&self) -> usize {
        self.bias.len()
    }

    /// Number of tokens that an output depends on.
    pub fn kernel(&self) -> usize {
        self.taps.len() / self.bias.len()
    }

    /// `bias[c] + Σ_j taps[j][c] x[t - (kernel - 1) + j][c]` of one token. `window` are its predecessors,
    /// `[kernel - 1, n_channels]`, the oldest first.
    fn step(&self, window: &mut [f32], x: &mut [f32]) {
        let n = self.n_channels();
        for (channel, x) in x.iter_mut().enumerate() {
            let mut y = self.bias[channel];
            for j in 0..self.kernel() - 1 {
                y += self.taps[j * n + channel] * window[j * n + channel];
            }
            y += self.taps[(self.kernel() - 1) * n + channel] * *x;
            window[channel] = std::mem::replace(x, y);
        }
        // The oldest inputs were replaced by the newest ones.
        window.rotate_left(n);
    }
}

/// The gated short convolution of LFM2 (Liquid AI 2025, arXiv:2511.23404). A row of `x` has the columns `b`,
/// `c` and `h`, one for each channel in each of them: `out = c · conv(b · h)`.
///
/// # Panics
/// When the lengths do not fit.
pub fn short_conv(window: &mut [f32], x: &[f32], conv: &ConvWeights<'_>, out: &mut [f32]) {
    let n = conv.n_channels();
    assert_eq!(x.len(), 3 * out.len());
    for (row, out) in x.chunks_exact(3 * n).zip(out.chunks_exact_mut(n)) {
        let (b, c, h) = (&row[..n], &row[n..2 * n], &row[2 * n..]);
        out.iter_mut().zip(b.iter().zip(h)).for_each(|(out, (b, h))| *out = b * h);
        conv.step(window, out);
        out.iter_mut().zip(c).for_each(|(out, c)| *out *= c);
    }
}

/// The sizes of a gated delta net.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaShape {
    /// Number of heads of queries and keys; each serves the same number of heads of values.
    pub n_key_heads: usize,
    /// Whether the heads of values of a key head are every `n_key_heads`-th head, instead of adjacent heads.
    pub is_tiled: bool,
    /// Number of heads of values.
    pub n_value_heads: usize,
    /// Number of elements of a head of queries or keys.
    pub key_dim: usize,
    /// Number of elements of a head of values.
    pub value_dim: usize,
    /// Tokens of the convolution.
    pub kernel: usize,
}

impl DeltaShape {
    /// The head of queries and keys that serves a head of values.
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.is_tiled {
            true => value_head % self.n_key_heads,
            false => value_head / (self.n_value_heads / self.n_key_heads),
        }
    }

    /// Number of columns of all queries, and of all keys.
    pub fn key_width(&self) -> usize {
        self.n_key_heads * self.key_dim
    }

    /// Number of columns of all values.
    pub fn value_width(&self) -> usize {
        self.n_value_heads * self.value_dim
    }

    /// Number of columns of the convolution: queries, keys, values.
    pub fn n_channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Columns of the input: those of the convolution, the output gate, and one for each head of values of
    /// the strength of the update and of the decay.
    pub fn input_width(&self) -> usize {
        self.n_channels() + self.value_width() + 2 * self.n_value_heads
    }
}

/// The weights of a gated delta net.
#[derive(Debug, Clone, Copy)]
pub struct DeltaWeights<'a> {
    /// Convolution over queries, keys and values.
    pub conv: ConvWeights<'a>,
    /// `-e^A` for each head of values: the logarithm of the decay a unit of time.
    pub decay_rate: &'a [f32],
    /// Bias that is added to the time before softplus.
    pub time_bias: &'a [f32],
    /// Gain of the norm of each head of the output, `[value_dim]`.
    pub norm_gain: &'a [f32],
    /// Epsilon that is added to the mean square.
    pub eps: f32,
}

/// Epsilon that is added to the sum of squares of queries and keys.
pub const L2_EPS: f32 = 1e-6;

/// A gated delta net (Yang et al. 2024, arXiv:2412.06464) as in Qwen3-Next. Queries, keys and values pass the
/// convolution and SiLU; queries and keys are divided by their length, queries also by `sqrt(key_dim)`. For
/// each head of values, with the state `S`, `[key_dim, value_dim]`: `S ← e^{rate · softplus(a + bias)} S`, `S
/// ← S + k ⊗ sigmoid(b) (v - Sᵀk)`, `out = norm(Sᵀq) · silu(z)`. `x` has the columns `q`, `k`, `v`, `z`, `b`,
/// `a`; `state` is the window of the convolution, `[kernel - 1, n_channels]`, then `S` of each head.
///
/// # Panics
/// When the lengths do not fit.
pub fn gated_delta_net(
    state: &mut [f32],
    x: &[f32],
    shape: &DeltaShape,
    weights: &DeltaWeights<'_>,
    out: &mut [f32],
) {
    let (n_channels, key_width, n_heads) = (shape.n_channels(), shape.key_width(), shape.n_value_heads);
    let (key_dim, value_dim) = (shape.key_dim, shape.value_dim);
    let (window, heads) = state.split_at_mut((shape.kernel - 1) * n_channels);
    let rows = x.chunks_exact(shape.input_width()).zip(out.chunks_exact_mut(shape.value_width()));
    for (row, out) in rows {
        let mut qkv = row[..n_channels].to_vec();
        weights.conv.step(window, &mut qkv);
        qkv.iter_mut().for_each(|x| *x = silu(*x));
        let (queries, rest) = qkv.split_at_mut(key_width);
        let (keys, values) = rest.split_at_mut(key_width);
        queries.chunks_exact_mut(key_dim).for_each(|q| l2_norm(q, (1.0 / key_dim as f32).sqrt()));
        keys.chunks_exact_mut(key_dim).for_each(|k| l2_norm(k, 1.0));
        let (z, gates) = row[n_channels..].split_at(shape.value_width());
        for (head, state) in heads.chunks_exact_mut(key_dim * value_dim).enumerate() {
            let key_head = shape.key_head(head) * key_dim;
            let (q, k) = (&queries[key_head..][..key_dim], &keys[key_head..][..key_dim]);
            let of_head = head * value_dim..(head + 1) * value_dim;
            let (v, z, out) = (&values[of_head.clone()], &z[of_head.clone()], &mut out[of_head]);
            let beta = sigmoid(gates[head]);
            let time = softplus(gates[n_heads + head] + weights.time_bias[head]);
            let decay = (weights.decay_rate[head] * time).exp();
            state.iter_mut().for_each(|s| *s *= decay);
            let recalled: Vec<f32> = (0..value_dim).map(|j| product(state, k, j, value_dim)).collect();
            for (state, k) in state.chunks_exact_mut(value_dim).zip(k) {
                for (j, s) in state.iter_mut().enumerate() {
                    *s += k * beta * (v[j] - recalled[j]);
                }
            }
            let recalled: Vec<f32> = (0..value_dim).map(|j| product(state, q, j, value_dim)).collect();
            rms_norm(&recalled, weights.norm_gain, weights.eps, out);
            out.iter_mut().zip(z).for_each(|(out, z)| *out *= silu(*z));
        }
    }
}

/// The sizes of a state space model of Mamba 2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StateSpaceShape {
    /// Number of heads.
    pub n_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Groups of adjacent heads that share their write and read vectors.
    pub n_groups: usize,
    /// Number of elements of the state for each element of a head.
    pub state_dim: usize,
    /// Tokens of the convolution.
    pub kernel: usize,
    /// Number of groups of columns that are normed each for itself; 0: the output is gated and not normed.
    pub n_norm_groups: usize,
    /// Bounds of the time that passes with a token.
    pub time_limits: [f32; 2],
}

impl StateSpaceShape {
    /// Number of columns of all heads.
    pub fn width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Columns of the convolution: heads, write vectors, read vectors.
    pub fn n_channels(&self) -> usize {
        self.width() + 2 * self.n_groups * self.state_dim
    }

    /// Columns of the input: the output gate, those of the convolution, and the time of each head.
    pub fn input_width(&self) -> usize {
        self.width() + self.n_channels() + self.n_heads
    }
}

/// The weights of a state space model.
#[derive(Debug, Clone, Copy)]
pub struct StateSpaceWeights<'a> {
    /// Convolution over heads, written and read columns.
    pub conv: ConvWeights<'a>,
    /// `-e^A` for each head: the logarithm of the decay a unit of time.
    pub decay_rate: &'a [f32],
    /// Bias that is added to the time before softplus.
    pub time_bias: &'a [f32],
    /// Factor of its input that a head adds to its output.
    pub skip: &'a [f32],
    /// Gain of the norm of the output, `[width]`.
    pub norm_gain: &'a [f32],
    /// Epsilon that is added to the mean square.
    pub eps: f32,
}

/// A state space model of Mamba 2 (Dao & Gu 2024, arXiv:2405.21060). Heads `h`, written `b` and read `c` pass
/// the convolution and SiLU. With `dt = softplus(time + bias)` within its limits and the state `S` of a head,
/// `[state_dim, head_dim]`: `S ← e^{rate · dt} S + b ⊗ dt h`, `y = Sᵀc + skip · h`, `out = norm(y ·
/// silu(z))`. `x` has the columns `z`, `h`, `b`, `c`, `time`; `state` is the window of the convolution,
/// `[kernel - 1, n_channels]`, then `S` of each head.
///
/// # Panics
/// When the lengths do not fit.
pub fn state_space(
    state: &mut [f32],
    x: &[f32],
    shape: &StateSpaceShape,
    weights: &StateSpaceWeights<'_>,
    out: &mut [f32],
) {
    let (width, n_channels) = (shape.width(), shape.n_channels());
    let (head_dim, state_dim) = (shape.head_dim, shape.state_dim);
    let (window, heads) = state.split_at_mut((shape.kernel - 1) * n_channels);
    for (row, out) in x.chunks_exact(shape.input_width()).zip(out.chunks_exact_mut(width)) {
        let (z, rest) = row.split_at(width);
        let (convolved, times) = rest.split_at(n_channels);
        let mut convolved = convolved.to_vec();
        weights.conv.step(window, &mut convolved);
        convolved.iter_mut().for_each(|x| *x = silu(*x));
        let (h, written_read) = convolved.split_at(width);
        let (written, read) = written_read.split_at(shape.n_groups * state_dim);
        for (head, state) in heads.chunks_exact_mut(state_dim * head_dim).enumerate() {
            let group = head / (shape.n_heads / shape.n_groups) * state_dim;
            let (b, c) = (&written[group..][..state_dim], &read[group..][..state_dim]);
            let of_head = head * head_dim..(head + 1) * head_dim;
            let (h, out) = (&h[of_head.clone()], &mut out[of_head]);
            let [least, most] = shape.time_limits;
            let dt = softplus(times[head] + weights.time_bias[head]).clamp(least, most);
            let decay = (weights.decay_rate[head] * dt).exp();
            for (state, b) in state.chunks_exact_mut(head_dim).zip(b) {
                state.iter_mut().zip(h).for_each(|(s, h)| *s = decay * *s + b * dt * h);
            }
            for (j, out) in out.iter_mut().enumerate() {
                *out = product(state, c, j, head_dim) + weights.skip[head] * h[j];
            }
        }
        let gated: Vec<f32> = out.iter().zip(z).map(|(y, z)| y * silu(*z)).collect();
        if shape.n_norm_groups == 0 {
            out.copy_from_slice(&gated);
            continue;
        }
        let group = width / shape.n_norm_groups;
        let parts = gated.chunks_exact(group).zip(weights.norm_gain.chunks_exact(group));
        for ((y, gain), out) in parts.zip(out.chunks_exact_mut(group)) {
            rms_norm(y, gain, weights.eps, out);
        }
    }
}

/// `Σ_i state[i][j] x[i]`.
fn product(state: &[f32], x: &[f32], j: usize, width: usize) -> f32 {
    x.iter().enumerate().map(|(i, x)| state[i * width + j] * x).sum()
}

/// `x = x / sqrt(Σ x² + 1e-6) * scale`.
fn l2_norm(x: &mut [f32], scale: f32) {
    let factor = scale / x.iter().fold(L2_EPS, |sum, x| sum + x * x).sqrt();
    x.iter_mut().for_each(|x| *x *= factor);
}

/// `ln(1 + e^x)`.
pub fn softplus(x: f32) -> f32 {
    // Beyond 20 both are the same f32.
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// `1 / (1 + e^-x)`.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
