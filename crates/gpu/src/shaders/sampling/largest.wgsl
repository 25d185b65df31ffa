// The first of the largest logits of each row: a workgroup a row.
struct Params {
    n: u32,
    width: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read> rows: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<vec2<u32>>;

//include keys

var<workgroup> found: array<vec2<u32>, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
    let item = wid.x + wid.y * nwg.x;
    if (item >= p.n) {
        return;
    }
    let at = rows[item] * p.width;
    var best = vec2<u32>(0u, NONE);
    for (var i = lid; i < p.width; i = i + 256u) {
        let other = vec2<u32>(key_of(logits[at + i]), i);
        if (is_before(other, best)) {
            best = other;
        }
    }
    found[lid] = best;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half = half / 2u) {
        if (lid < half) {
            let other = found[lid + half];
            if (is_before(other, found[lid])) {
                found[lid] = other;
            }
        }
        workgroupBarrier();
    }
    if (lid == 0u) {
        out[item] = found[0];
    }
}
