// Adds the product with a pair of low-rank matrices to rows: a workgroup a row and 64 columns.
struct Params {
    n: u32,
    cols: u32,
    rank: u32,
    n_out: u32,
    x_stride: u32,
    out_stride: u32,
    first_col: u32,
    a_at: u32,
    b_at: u32,
    scale: f32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> matrices: array<f32>;
@group(0) @binding(2) var<storage, read> rows: array<u32>;
//if SHRINK
@group(0) @binding(3) var<storage, read_write> shrunk: array<f32>;
//else
@group(0) @binding(3) var<storage, read> shrunk: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
//end

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
    let i = (wid.x + wid.y * nwg.x) * 64u + lid;
    if (i >= p.n) {
        return;
    }
//if SHRINK
    let r = i % p.rank;
    let row = rows[i / p.rank];
    var sum = 0.0;
    for (var c = 0u; c < p.cols; c = c + 1u) {
        sum = fma(matrices[p.a_at + r * p.cols + c], x[row * p.x_stride + c], sum);
    }
    shrunk[i] = sum * p.scale;
//else
    let o = i % p.n_out;
    let row = rows[i / p.n_out];
    var sum = 0.0;
    for (var r = 0u; r < p.rank; r = r + 1u) {
        sum = fma(matrices[p.b_at + o * p.rank + r], shrunk[i / p.n_out * p.rank + r], sum);
    }
    let at = row * p.out_stride + p.first_col + o;
    out[at] = out[at] + sum;
//end
}
