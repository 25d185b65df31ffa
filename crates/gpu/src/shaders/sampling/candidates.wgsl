// The first candidates of each chunk of a row, in order: a workgroup a chunk, which it sorts.
struct Params {
    // Number of logits of a row, or of candidates that are left of it.
    n: u32,
    width: u32,
    n_chunks: u32,
}
var<immediate> p: Params;
//if FIRST
@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read> rows: array<u32>;
//else
@group(0) @binding(0) var<storage, read> left: array<vec2<u32>>;
//end
//if FIRST
@group(0) @binding(2) var<storage, read_write> out: array<vec2<u32>>;
//else
@group(0) @binding(1) var<storage, read_write> out: array<vec2<u32>>;
//end

//include keys

var<workgroup> sorted: array<vec2<u32>, CHUNK>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let chunk = wid.x;
    let item = wid.y;
    for (var i = lid; i < CHUNK; i = i + 256u) {
        let col = chunk * CHUNK + i;
        var candidate = vec2<u32>(0u, NONE);
        if (col < p.n) {
//if FIRST
            candidate = vec2<u32>(key_of(logits[rows[item] * p.width + col]), col);
//else
            candidate = left[item * p.n + col];
//end
        }
        sorted[i] = candidate;
    }
    workgroupBarrier();
    // Bitonic sort.
    for (var size = 2u; size <= CHUNK; size = size * 2u) {
        for (var distance = size / 2u; distance > 0u; distance = distance / 2u) {
            for (var pair = lid; pair < CHUNK / 2u; pair = pair + 256u) {
                let low = pair % distance;
                let a = (pair - low) * 2u + low;
                let b = a + distance;
                let first = sorted[a];
                let second = sorted[b];
                let ascends = (a & size) == 0u;
                if (is_before(second, first) == ascends && (first.x != second.x || first.y != second.y)) {
                    sorted[a] = second;
                    sorted[b] = first;
                }
            }
            workgroupBarrier();
        }
    }
    if (lid < CANDIDATES) {
        out[(item * p.n_chunks + chunk) * CANDIDATES + lid] = sorted[lid];
    }
}
