// A depthwise causal convolution in place over the tokens of each sequence: a thread a channel. With gates a
// short convolution: `out = c * conv(b * h)`.
struct Params {
    // Channels, and threads: channels times chains.
    n_channels: u32,
    n: u32,
    kernel: u32,
    stride: u32,
    first: u32,
    out_stride: u32,
    // Elements of a slot.
    slot: u32,
    activates: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> taps: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> states: array<f32>;
// First entry of each chain and of the one after the last; then entries: first row, rows, from + 1, to.
@group(0) @binding(4) var<storage, read> chains: array<u32>;
//if SHORT
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
//end

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
    let i = (wid.x + wid.y * nwg.x) * 64u + lid;
    if (i >= p.n) {
        return;
    }
    let channel = i % p.n_channels;
    let chain = i / p.n_channels;
    let n_window = p.kernel - 1u;
    for (var entry = chains[chain]; entry < chains[chain + 1u]; entry = entry + 4u) {
        let first_row = chains[entry];
        let n_rows = chains[entry + 1u];
        let origin = chains[entry + 2u];
        let to = chains[entry + 3u] * p.slot;
        for (var j = 0u; j < n_window; j = j + 1u) {
            var value = 0.0;
            if (origin != 0u) {
                value = states[(origin - 1u) * p.slot + j * p.n_channels + channel];
            }
            states[to + j * p.n_channels + channel] = value;
        }
        for (var row = first_row; row < first_row + n_rows; row = row + 1u) {
//if SHORT
            let at = row * p.stride + channel;
            let value = x[at] * x[at + 2u * p.n_channels];
//else
            let at = row * p.stride + p.first + channel;
            let value = x[at];
//end
            var y = bias[channel];
            for (var j = 0u; j < n_window; j = j + 1u) {
                y = fma(taps[j * p.n_channels + channel], states[to + j * p.n_channels + channel], y);
            }
            y = fma(taps[n_window * p.n_channels + channel], value, y);
            for (var j = 1u; j < n_window; j = j + 1u) {
                states[to + (j - 1u) * p.n_channels + channel] = states[to + j * p.n_channels + channel];
            }
            if (n_window > 0u) {
                states[to + (n_window - 1u) * p.n_channels + channel] = value;
            }
//if SHORT
            out[row * p.out_stride + channel] = y * x[at + p.n_channels];
//else
            x[at] = silu_(y);
//end
        }
    }
}
