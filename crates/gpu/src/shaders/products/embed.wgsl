// Rows of a table by token.
struct Params {
    n: u32,
    k4s: u32,
    cols: u32,
    first_row: u32,
    n_rows: u32,
    out_stride: u32,
    tokens_at: u32,
    w_codes: u32,
    w_scales: u32,
    scale: f32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> w: array<u32>;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

//include weights

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
    let i = (wid.x + wid.y * nwg.x) * 64u + lid;
    let n4 = (p.cols + 3u) / 4u;
    let row = i / n4;
    let k4 = i % n4;
    if (row >= p.n) {
        return;
    }
    let token = batch[p.tokens_at + row];
    if (token < p.first_row || token >= p.first_row + p.n_rows) {
        return;
    }
    let values = w4(token - p.first_row, k4) * p.scale;
    for (var c = 0u; c < 4u; c = c + 1u) {
        if (k4 * 4u + c < p.cols) {
            out[row * p.out_stride + k4 * 4u + c] = values[c];
        }
    }
}
