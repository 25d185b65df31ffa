// Copies groups of columns, or rows of chosen tokens.
struct Params {
    n: u32,
    width: u32,
    n_groups: u32,
    x_stride: u32,
    x_first: u32,
    x_group: u32,
    out_stride: u32,
    out_first: u32,
    out_group: u32,
    // Where the batch has the rows of `x`.
    rows_at: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
//if CHOSEN
@group(0) @binding(2) var<storage, read> batch: array<u32>;
//end

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
    let i = (wid.x + wid.y * nwg.x) * 64u + lid;
    if (i >= p.n) {
        return;
    }
    let col = i % p.width;
    let group = i / p.width % p.n_groups;
    let row = i / (p.width * p.n_groups);
    var origin = row;
//if CHOSEN
    origin = batch[p.rows_at + row];
//end
    out[row * p.out_stride + p.out_first + group * p.out_group + col] =
        x[origin * p.x_stride + p.x_first + group * p.x_group + col];
}
