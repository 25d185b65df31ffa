// Reads all of a buffer.
struct Params {
    n: u32,
    n_threads: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> data: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var sum = vec4<u32>(0u);
    for (var i = id.x; i < p.n; i = i + p.n_threads) {
        sum = sum ^ data[i];
    }
    out[id.x] = sum.x ^ sum.y ^ sum.z ^ sum.w;
}
