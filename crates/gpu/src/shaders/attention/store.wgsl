// Writes keys or values of new tokens: a thread 32 elements of a head of a token.
struct Params {
    n: u32,
    n_kv_heads: u32,
    head_dim: u32,
    stride: u32,
    first: u32,
    // Where the batch has the span of each row, the spans, and the block tables.
    row_spans_at: u32,
    spans_at: u32,
    blocks_at: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> panels: array<u32>;

fn bf16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
    let i = (wid.x + wid.y * nwg.x) * 64u + lid;
    if (i >= p.n) {
        return;
    }
    let n_parts = (DIM4 + 7u) / 8u;
    let part = i % n_parts;
    let head = i / n_parts % p.n_kv_heads;
    let row = i / (n_parts * p.n_kv_heads);
    let span = p.spans_at + 4u * batch[p.row_spans_at + row];
    let position = batch[span + 2u] + row - batch[span];
    let block = batch[p.blocks_at + batch[span + 3u] + position / 16u];
    let slot = position % 16u;
    let panel = (block * p.n_kv_heads + head) * PANEL_WORDS;
    let origin = row * p.stride + p.first + head * p.head_dim;
    let end4 = min(part * 8u + 8u, DIM4);
//if KV_Q8_0
    var largest = 0.0;
    for (var d = part * 32u; d < end4 * 4u; d = d + 1u) {
        largest = max(largest, abs(x[origin + d]));
    }
    let scale = largest / 127.0;
    let inverse = select(127.0 / largest, 0.0, largest == 0.0);
//if IS_KEY
    panels[panel + DIM4 * 16u + part * 16u + slot] = bitcast<u32>(scale);
//else
    panels[panel + DIM4 * 16u + slot * (DIM4 / 8u) + part] = bitcast<u32>(scale);
//end
//end
    for (var d4 = part * 8u; d4 < end4; d4 = d4 + 1u) {
        var v = vec4<f32>(0.0);
        for (var c = 0u; c < 4u; c = c + 1u) {
            if (d4 * 4u + c < p.head_dim) {
                v[c] = x[origin + d4 * 4u + c];
            }
        }
//if KV_F32
        for (var c = 0u; c < 4u; c = c + 1u) {
//if IS_KEY
            panels[panel + (d4 * 4u + c) * 16u + slot] = bitcast<u32>(v[c]);
//else
            panels[panel + (slot * DIM4 + d4) * 4u + c] = bitcast<u32>(v[c]);
//end
        }
//end
//if KV_Q8_0
        let codes = pack4xI8(vec4<i32>(round(v * inverse)));
//if IS_KEY
        panels[panel + d4 * 16u + slot] = codes;
//else
        panels[panel + slot * DIM4 + d4] = codes;
//end
//end
//if KV_HALVES
//if KV_F16
        let a = pack2x16float(v.xy);
        let b = pack2x16float(v.zw);
//else
        let a = bf16(v.x) | (bf16(v.y) << 16u);
        let b = bf16(v.z) | (bf16(v.w) << 16u);
//end
//if IS_KEY
        panels[panel + (d4 * 2u) * 16u + slot] = a;
        panels[panel + (d4 * 2u + 1u) * 16u + slot] = b;
//else
        panels[panel + (slot * DIM4 + d4) * 2u] = a;
        panels[panel + (slot * DIM4 + d4) * 2u + 1u] = b;
//end
//end
    }
}
