// Rotates pairs of elements of heads by the angles of each token.
struct Params {
    n: u32,
    n_pairs: u32,
    n_groups: u32,
    width: u32,
    stride: u32,
    first: u32,
    is_interleaved: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
// Cosines, then sines, of each token.
@group(0) @binding(1) var<storage, read> angles: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
    let i = (wid.x + wid.y * nwg.x) * 64u + lid;
    if (i >= p.n) {
        return;
    }
    let pair = i % p.n_pairs;
    let group = i / p.n_pairs % p.n_groups;
    let row = i / (p.n_pairs * p.n_groups);
    let head = row * p.stride + p.first + group * p.width;
    var at = head + pair;
    var other = at + p.n_pairs;
    if (p.is_interleaved != 0u) {
        at = head + 2u * pair;
        other = at + 1u;
    }
    let c = angles[row * 2u * p.n_pairs + pair];
    let s = angles[row * 2u * p.n_pairs + p.n_pairs + pair];
    let a = x[at];
    let b = x[other];
    x[at] = fma(a, c, -(b * s));
    x[other] = fma(b, c, a * s);
}
