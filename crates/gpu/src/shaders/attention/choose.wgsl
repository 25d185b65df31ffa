// The positions of each token with the highest scores of an indexer, in increasing order: a workgroup a token.
// The score of a key is the sum over heads of `weight * max(q . k, 0)`. Of equal scores the smaller position is
// chosen.
struct Params {
    n: u32,
    n_heads: u32,
    head_dim: u32,
    stride: u32,
    panel_words: u32,
    row_spans_at: u32,
    spans_at: u32,
    blocks_at: u32,
    n_chosen: u32,
    // Rows before the first one, and scores of a row.
    first_row: u32,
    n_scores: u32,
    all_positions: f32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> keys: array<u32>;
@group(0) @binding(2) var<storage, read> weights: array<f32>;
@group(0) @binding(3) var<storage, read> batch: array<u32>;
@group(0) @binding(4) var<storage, read_write> scores: array<u32>;
@group(0) @binding(5) var<storage, read_write> chosen: array<f32>;

//include kv

var<workgroup> counts: array<u32, 64>;

fn total(lid: u32, value: u32) -> u32 {
    counts[lid] = value;
    workgroupBarrier();
    for (var half = 32u; half > 0u; half = half / 2u) {
        if (lid < half) {
            counts[lid] = counts[lid] + counts[lid + half];
        }
        workgroupBarrier();
    }
    let sum = counts[0];
    workgroupBarrier();
    return sum;
}

// A number whose order is that of the scores.
fn ordered(score: f32) -> u32 {
    let bits = bitcast<u32>(score + 0.0);
    return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
    let item = wid.x + wid.y * nwg.x;
    if (item >= p.n) {
        return;
    }
    let row = p.first_row + item;
    let span = p.spans_at + 4u * batch[p.row_spans_at + row];
    let end = batch[span + 2u] + row - batch[span] + 1u;
    let out = row * p.n_chosen;
    if (end <= p.n_chosen) {
        if (lid == 0u) {
            chosen[out] = p.all_positions;
        }
        return;
    }
    let blocks = p.blocks_at + batch[span + 3u];
    let of_row = item * p.n_scores;
    for (var position = lid; position < end; position = position + 64u) {
        let panel = batch[blocks + position / 16u] * p.panel_words;
        var score = 0.0;
        for (var head = 0u; head < p.n_heads; head = head + 1u) {
            var product = 0.0;
            for (var d4 = 0u; d4 < DIM4; d4 = d4 + 1u) {
                let key = key4(panel, d4, position % 16u);
                let at = row * p.stride + head * p.head_dim + d4 * 4u;
                for (var c = 0u; c < 4u; c = c + 1u) {
                    if (d4 * 4u + c < p.head_dim) {
                        product = fma(x[at + c], key[c], product);
                    }
                }
            }
            score = fma(weights[row * p.n_heads + head], max(product, 0.0), score);
        }
        scores[of_row + position] = ordered(score);
    }
    // The score of the last one that is chosen, bit by bit.
    var least = 0u;
    for (var bit = 0u; bit < 32u; bit = bit + 1u) {
        let candidate = least | (0x80000000u >> bit);
        var n = 0u;
        for (var position = lid; position < end; position = position + 64u) {
            n = n + select(0u, 1u, scores[of_row + position] >= candidate);
        }
        least = select(least, candidate, total(lid, n) >= p.n_chosen);
    }
    var n_above = 0u;
    for (var position = lid; position < end; position = position + 64u) {
        n_above = n_above + select(0u, 1u, scores[of_row + position] > least);
    }
    let n_equal = p.n_chosen - total(lid, n_above);
    var n_before = 0u;
    var n_equal_before = 0u;
    for (var first = 0u; first < end; first = first + 64u) {
        let position = first + lid;
        var is_above = 0u;
        var is_equal = 0u;
        if (position < end) {
            is_above = select(0u, 1u, scores[of_row + position] > least);
            is_equal = select(0u, 1u, scores[of_row + position] == least);
        }
        // Counts of both in one number.
        counts[lid] = is_above | (is_equal << 16u);
        workgroupBarrier();
        var before = 0u;
        var all = 0u;
        for (var i = 0u; i < 64u; i = i + 1u) {
            all = all + counts[i];
            before = before + select(0u, counts[i], i < lid);
        }
        workgroupBarrier();
        let equal_before = n_equal_before + (before >> 16u);
        let is_chosen = is_above == 1u || (is_equal == 1u && equal_before < n_equal);
        if (is_chosen) {
            let at = n_before + (before & 0xffffu) + min(equal_before, n_equal);
            chosen[out + at] = f32(position);
        }
        n_before = n_before + (all & 0xffffu);
        n_equal_before = n_equal_before + (all >> 16u);
    }
}
