// Copies whole blocks of keys or values of a layer, which do not overlap.
struct Params {
    n: u32,
    block_words: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> panels: array<u32>;
// From and to, of each copy.
@group(0) @binding(1) var<storage, read> copies: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
    let i = (wid.x + wid.y * nwg.x) * 64u + lid;
    if (i >= p.n) {
        return;
    }
    let copy = i / p.block_words * 2u;
    let word = i % p.block_words;
    panels[copies[copy + 1u] * p.block_words + word] = panels[copies[copy] * p.block_words + word];
}
