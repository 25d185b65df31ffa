// Norms groups of columns in place and gates them: a workgroup a group.
struct Params {
    n: u32,
    n_groups: u32,
    width: u32,
    out_stride: u32,
    x_stride: u32,
    gate_col: u32,
    // 0: all groups have one gain.
    gain_stride: u32,
    // 0: norm, then gate; 1: gate, then norm; 2: gate.
    order: u32,
    eps: f32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> gain: array<f32>;

var<workgroup> sums: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
    let item = wid.x + wid.y * nwg.x;
    if (item >= p.n) {
        return;
    }
    let row = item / p.n_groups;
    let group = item % p.n_groups;
    let at = row * p.out_stride + group * p.width;
    let gates = row * p.x_stride + p.gate_col + group * p.width;
    var squares = 0.0;
    for (var i = lid; i < p.width; i = i + 64u) {
        var y = out[at + i];
        if (p.order != 0u) {
            y = y * silu_(x[gates + i]);
            out[at + i] = y;
        }
        squares = fma(y, y, squares);
    }
    sums[lid] = squares;
    workgroupBarrier();
    for (var half = 32u; half > 0u; half = half / 2u) {
        if (lid < half) {
            sums[lid] = sums[lid] + sums[lid + half];
        }
        workgroupBarrier();
    }
    if (p.order == 2u) {
        return;
    }
    let inverse = 1.0 / sqrt(sums[0] / f32(p.width) + p.eps);
    for (var i = lid; i < p.width; i = i + 64u) {
        var y = out[at + i] * inverse * gain[group * p.gain_stride + i];
        if (p.order == 0u) {
            y = y * silu_(x[gates + i]);
        }
        out[at + i] = y;
    }
}
