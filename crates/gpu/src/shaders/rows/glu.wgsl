// Hidden activations of a feed-forward network: `activation(gate) * up`, or `activation(x)`.
struct Params {
    n: u32,
    width: u32,
    x_stride: u32,
    is_gated: u32,
    activation: u32,
    alpha: f32,
    limit: f32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
    let i = (wid.x + wid.y * nwg.x) * 64u + lid;
    if (i >= p.n) {
        return;
    }
    let row = i / p.width;
    let col = i % p.width;
    let g = x[row * p.x_stride + col];
    var u = 1.0;
    if (p.is_gated != 0u) {
        u = x[row * p.x_stride + p.width + col];
    }
    var y = 0.0;
    switch (p.activation) {
        case 0u: {
            y = silu_(g) * u;
        }
        case 1u: {
            let inner = 0.7978845608 * fma(0.044715 * g * g, g, g);
            y = 0.5 * g * (1.0 + tanh_(inner)) * u;
        }
        case 2u: {
            y = 0.5 * g * (1.0 + erf_(g * 0.70710678)) * u;
        }
        case 3u: {
            y = max(g, 0.0) * u;
        }
        default: {
            let h = min(g, p.limit);
            y = h / (1.0 + exp_(-p.alpha * h)) * (clamp(u, -p.limit, p.limit) + 1.0);
        }
    }
    out[i] = y;
}
