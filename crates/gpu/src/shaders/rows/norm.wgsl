// A norm of groups of columns, a workgroup a group: root mean square, or with a bias a layer norm.
struct Params {
    n_groups: u32,
    first: u32,
    width: u32,
    x_stride: u32,
    out_stride: u32,
    // Distance of the gains of two groups: 0 where all groups have one gain.
    gain_stride: u32,
    has_bias: u32,
    eps: f32,
    n: u32,
}
var<immediate> p: Params;
//if IN_PLACE
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> gain: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
//else
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gain: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
//end

var<workgroup> sums: array<f32, 64>;

fn total(lid: u32, value: f32) -> f32 {
    sums[lid] = value;
    workgroupBarrier();
    for (var half = 32u; half > 0u; half = half / 2u) {
        if (lid < half) {
            sums[lid] = sums[lid] + sums[lid + half];
        }
        workgroupBarrier();
    }
    let sum = sums[0];
    workgroupBarrier();
    return sum;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
    let item = wid.x + wid.y * nwg.x;
    if (item >= p.n) {
        return;
    }
    let group = item % p.n_groups;
    let row = item / p.n_groups;
    let at = row * p.x_stride + p.first + group * p.width;
    let to = row * p.out_stride + p.first + group * p.width;
    var mean = 0.0;
    if (p.has_bias != 0u) {
        var sum = 0.0;
        for (var i = lid; i < p.width; i = i + 64u) {
            sum = sum + x[at + i];
        }
        mean = total(lid, sum) / f32(p.width);
    }
    var squares = 0.0;
    for (var i = lid; i < p.width; i = i + 64u) {
        let value = x[at + i] - mean;
        squares = fma(value, value, squares);
    }
    let inverse = 1.0 / sqrt(total(lid, squares) / f32(p.width) + p.eps);
    for (var i = lid; i < p.width; i = i + 64u) {
        let scaled = (x[at + i] - mean) * inverse;
        let g = gain[group * p.gain_stride + i];
        var y = scaled * g;
        if (p.has_bias != 0u) {
            y = fma(scaled, g, bias[group * p.gain_stride + i]);
        }
//if IN_PLACE
        x[to + i] = y;
//else
        out[to + i] = y;
//end
    }
}
