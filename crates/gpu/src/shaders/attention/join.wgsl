// Joins the splits of each query in order, as the kernel of attention does where a workgroup has all of them:
// a workgroup a query.
struct Params {
    n_heads: u32,
    n_splits: u32,
    value_dim: u32,
    out_stride: u32,
    has_sinks: u32,
    n: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> parts: array<f32>;
@group(0) @binding(1) var<storage, read> sinks: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

const LEAST: f32 = -3.0e38;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
    let item = wid.x + wid.y * nwg.x;
    if (item >= p.n) {
        return;
    }
    let head = item % p.n_heads;
    for (var d = lid; d < p.value_dim; d = d + 64u) {
        var most = LEAST;
        var sum = 0.0;
        var acc = 0.0;
        for (var split = 0u; split < p.n_splits; split = split + 1u) {
            let part = (item * p.n_splits + split) * (VALUE4 * 4u + 2u);
            let m = parts[part];
            if (m > LEAST) {
                let new_most = max(most, m);
                let old_factor = exp_(most - new_most);
                let new_factor = exp_(m - new_most);
                acc = fma(acc, old_factor, parts[part + 2u + d] * new_factor);
                sum = fma(sum, old_factor, parts[part + 1u] * new_factor);
                most = new_most;
            }
        }
        var factor = 1.0;
        if (p.has_sinks != 0u) {
            let new_most = max(most, sinks[head]);
            factor = exp_(most - new_most);
            sum = fma(sum, factor, exp_(sinks[head] - new_most));
        }
        out[item / p.n_heads * p.out_stride + head * p.value_dim + d] = acc * (factor / sum);
    }
}
