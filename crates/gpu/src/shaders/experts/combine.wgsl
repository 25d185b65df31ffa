// Sums the results of each row's experts in increasing order.
struct Params {
    n: u32,
    width: u32,
    n_used: u32,
    out_stride: u32,
    first_row: u32,
    weights_at: u32,
    are_weighted: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> routes: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
    let i = (wid.x + wid.y * nwg.x) * 64u + lid;
    if (i >= p.n) {
        return;
    }
    let row = i / p.width;
    let col = i % p.width;
    var sum = 0.0;
    for (var k = 0u; k < p.n_used; k = k + 1u) {
        let pair = row * p.n_used + k;
        var weight = 1.0;
        if (p.are_weighted != 0u) {
            weight = bitcast<f32>(routes[p.weights_at + pair]);
        }
        sum = fma(weight, x[pair * p.width + col], sum);
    }
    out[(p.first_row + row) * p.out_stride + col] = sum;
}
