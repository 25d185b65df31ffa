// Attention over paged keys and values. A workgroup has up to QUERIES queries of one KV head: heads that share
// it, of adjacent tokens. Positions are processed in splits at multiples of 128: scores, their largest, sums in
// eight parts of sixteen positions, and weighted values in four parts of 32. A query's arithmetic depends on
// its own position only: a split without a position that it sees changes nothing of it.
struct Params {
    n_kv_heads: u32,
    // Query heads of a KV head, of them in a tile, and tiles of them.
    group: u32,
    tile_heads: u32,
    n_head_tiles: u32,
    head_dim: u32,
    value_dim: u32,
    values_from4: u32,
    stride: u32,
    out_stride: u32,
    scale: f32,
    softcap: f32,
    window: u32,
    chunk: u32,
    first_position: u32,
    is_bidirectional: u32,
    has_sinks: u32,
    has_ends: u32,
    ends_at: u32,
    spans_at: u32,
    blocks_at: u32,
    // Words of a panel.
    panel_words: u32,
    // Scores by distance: columns of keys and values, buckets, distance 0 in the table of buckets, and whether
    // there are a bias, scores of queries and scores of keys.
    key_col: u32,
    value_col: u32,
    n_buckets: u32,
    reach: u32,
    has_bias: u32,
    has_of_queries: u32,
    has_of_keys: u32,
    // Columns of chosen positions, and the number that stands for all positions.
    n_chosen: u32,
    all_positions: f32,
    // Splits, where a workgroup has one of them.
    n_splits: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
//if RELATIVE
@group(0) @binding(1) var<storage, read> of_queries: array<f32>;
@group(0) @binding(2) var<storage, read> of_keys: array<f32>;
//else
@group(0) @binding(1) var<storage, read> keys: array<u32>;
@group(0) @binding(2) var<storage, read> values: array<u32>;
//end
@group(0) @binding(3) var<storage, read> batch: array<u32>;
// First row, number of rows, and span of each tile of tokens.
@group(0) @binding(4) var<storage, read> tiles: array<u32>;
@group(0) @binding(5) var<storage, read> sinks: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
//if RELATIVE
@group(0) @binding(7) var<storage, read> buckets: array<u32>;
//end
//if CHOSEN
@group(0) @binding(7) var<storage, read> chosen: array<f32>;

// Where the positions of the tile's token begin, and whether they are all.
var<private> chosen_at: u32;
var<private> takes_all: bool;
//end

const SPLIT: u32 = 128u;
const LEAST: f32 = -3.0e38;

var<workgroup> q: array<vec4<f32>, QUERIES * DIM4>;
var<workgroup> acc: array<vec4<f32>, QUERIES * VALUE4>;
var<workgroup> weights: array<f32, QUERIES * SPLIT>;
var<workgroup> parts: array<f32, QUERIES * 8u>;
var<workgroup> maxima: array<f32, QUERIES * 8u>;
var<workgroup> most: array<f32, QUERIES>;
var<workgroup> sums: array<f32, QUERIES>;
// The first position that each query sees, and the one after the last.
var<workgroup> firsts: array<u32, QUERIES>;
var<workgroup> ends: array<u32, QUERIES>;
//if ONE_QUERY
var<workgroup> value_parts: array<vec4<f32>, VALUE4 * 4u>;
//end

//if RELATIVE
// Keys and values are rows of the projection; `first` is the first row of the sequence.
fn place(first: u32, kv_head: u32, position: u32) -> u32 {
    return (first + position) * p.stride + kv_head * p.head_dim;
}

fn row4(at: u32, d4: u32) -> vec4<f32> {
    var v = vec4<f32>(0.0);
    for (var c = 0u; c < 4u; c = c + 1u) {
        if (d4 * 4u + c < p.head_dim) {
            v[c] = x[at + d4 * 4u + c];
        }
    }
    return v;
}

fn key4(row: u32, d4: u32, slot: u32) -> vec4<f32> {
    return row4(row + p.key_col, d4);
}

fn value4(row: u32, d4: u32, slot: u32) -> vec4<f32> {
    return row4(row + p.value_col, d4);
}

// The score by distance that is multiplied, and the one that is added.
fn relative(first: u32, row: u32, position: u32, head: u32) -> vec2<f32> {
    let origin = row - first + p.reach;
    let bucket = buckets[min(select(0u, origin - position, origin > position), 2u * p.reach)];
    let at = head * p.n_buckets + bucket;
    var scores = vec2<f32>(0.0);
    if (p.has_of_queries != 0u) {
        scores.x = scores.x + of_queries[row * p.n_buckets * p.n_kv_heads + at];
    }
    if (p.has_of_keys != 0u) {
        scores.x = scores.x + of_keys[(first + position) * p.n_buckets * p.n_kv_heads + at];
    }
    if (p.has_bias != 0u) {
        scores.y = sinks[at];
    }
    return scores;
}
//else
fn place(blocks: u32, kv_head: u32, position: u32) -> u32 {
    return (batch[blocks + position / 16u] * p.n_kv_heads + kv_head) * p.panel_words;
}

//include kv
//end

fn first_visible(position: u32) -> u32 {
    var first = min(p.first_position, position);
    if (p.window != 0u && position + 1u > p.window) {
        first = max(first, position + 1u - p.window);
    }
    if (p.chunk != 0u) {
        first = max(first, position / p.chunk * p.chunk);
    }
    return first;
}

fn end_visible(row: u32, position: u32, n_tokens: u32) -> u32 {
    var end = position + 1u;
    if (p.is_bidirectional != 0u) {
        end = n_tokens;
    }
    if (p.has_ends != 0u) {
        end = max(end, batch[p.ends_at + row]);
    }
    if (p.window != 0u) {
        end = min(end, position + p.window);
    }
    return end;
}

// The position of this number among those that the tile's tokens see.
fn position_of(i: u32) -> u32 {
//if CHOSEN
    if (!takes_all) {
        return u32(chosen[chosen_at + i]);
    }
//end
    return i;
}

// The largest score of a query in a split.
fn largest(j: u32) -> f32 {
    var m = maxima[j * 8u];
    for (var i = 1u; i < 8u; i = i + 1u) {
        m = max(m, maxima[j * 8u + i]);
    }
    return m;
}

// Weighted values of a quarter of a split.
fn weighted(j: u32, d4: u32, quarter: u32, first: u32, n: u32, blocks: u32, kv_head: u32) -> vec4<f32> {
    var sum = vec4<f32>(0.0);
    for (var i = quarter * 32u; i < min(quarter * 32u + 32u, n); i = i + 1u) {
        let weight = weights[j * SPLIT + i];
        if (weight != 0.0) {
            let position = position_of(first + i);
            let panel = place(blocks, kv_head, position);
            sum = fma(vec4<f32>(weight), value4(panel, d4, position % 16u), sum);
        }
    }
    return sum;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let tile = wid.y * 3u;
    let tile_row = tiles[tile];
    let n_rows = tiles[tile + 1u];
    let span = p.spans_at + 4u * tiles[tile + 2u];
    let kv_head = wid.x / p.n_head_tiles;
    let tile_head = wid.x % p.n_head_tiles * p.tile_heads;
    let n_heads = min(p.tile_heads, p.group - tile_head);
    let first_head = kv_head * p.group + tile_head;
    let start = batch[span + 2u];
    let span_row = batch[span];
    let n_tokens = start + batch[span + 1u];
//if CHOSEN
    chosen_at = tile_row * p.n_chosen;
    takes_all = chosen[chosen_at] == p.all_positions;
//end
//if RELATIVE
    let blocks = span_row;
//else
    let blocks = p.blocks_at + batch[span + 3u];
//end

    for (var i = lid; i < QUERIES * DIM4; i = i + 64u) {
        let j = i / DIM4;
        let d = i % DIM4 * 4u;
        var v = vec4<f32>(0.0);
        if (j / p.tile_heads < n_rows && j % p.tile_heads < n_heads) {
            let at = (tile_row + j / p.tile_heads) * p.stride + (first_head + j % p.tile_heads) * p.head_dim + d;
            for (var c = 0u; c < 4u; c = c + 1u) {
                if (d + c < p.head_dim) {
                    v[c] = x[at + c];
                }
            }
        }
        q[i] = v;
    }
    for (var i = lid; i < QUERIES * VALUE4; i = i + 64u) {
        acc[i] = vec4<f32>(0.0);
    }
    if (lid < QUERIES) {
        let row = tile_row + lid / p.tile_heads;
        var first = 0u;
        var end = 0u;
        if (lid / p.tile_heads < n_rows && lid % p.tile_heads < n_heads) {
            let position = start + row - span_row;
            first = first_visible(position);
            end = end_visible(row, position, n_tokens);
//if CHOSEN
            end = select(p.n_chosen, end, takes_all);
//end
        }
        firsts[lid] = first;
        ends[lid] = end;
        most[lid] = LEAST;
        sums[lid] = 0.0;
    }
    // Positions that any of the tile's tokens sees.
    let first_of_tile = first_visible(start + tile_row - span_row);
    var end_of_tile = 0u;
    for (var i = 0u; i < n_rows; i = i + 1u) {
        let row = tile_row + i;
        end_of_tile = max(end_of_tile, end_visible(row, start + row - span_row, n_tokens));
    }
//if CHOSEN
    end_of_tile = select(p.n_chosen, end_of_tile, takes_all);
//end
    workgroupBarrier();

    let first_split = first_of_tile / SPLIT * SPLIT;
//if PART
    // One split; the state behind it is that of the split alone.
    let first = max(first_split, wid.z * SPLIT);
    let end = min(end_of_tile, wid.z * SPLIT + SPLIT);
//else
    let first = first_split;
    let end = end_of_tile;
//end
    for (var split = first; split < end; split = split + SPLIT) {
        let n = min(SPLIT, end_of_tile - split);
        for (var i = lid; i < n; i = i + 64u) {
            let position = position_of(split + i);
            let panel = place(blocks, kv_head, position);
            let slot = position % 16u;
//for J QUERIES
            var product$J = 0.0;
//end
            for (var d4 = 0u; d4 < DIM4; d4 = d4 + 1u) {
                let key = key4(panel, d4, slot);
//for J QUERIES
                product$J = dot4(q[$Ju * DIM4 + d4], key, product$J);
//end
            }
//for J QUERIES
            {
//if RELATIVE
                let by_distance = relative(span_row, min(tile_row + $Ju / p.tile_heads, tile_row + n_rows - 1u),
                                           position, first_head);
                var score = fma(product$J + by_distance.x, p.scale, by_distance.y);
//else
                var score = product$J * p.scale;
//end
                if (p.softcap != 0.0) {
                    score = p.softcap * tanh_(score / p.softcap);
                }
                let is_seen = split + i >= firsts[$J] && split + i < ends[$J];
                weights[$Ju * SPLIT + i] = select(LEAST, score, is_seen);
            }
//end
        }
        workgroupBarrier();
        for (var i = lid; i < QUERIES * 8u; i = i + 64u) {
            var m = LEAST;
            for (var k = i % 8u * 16u; k < min(i % 8u * 16u + 16u, n); k = k + 1u) {
                m = max(m, weights[i / 8u * SPLIT + k]);
            }
            maxima[i] = m;
        }
        workgroupBarrier();
        for (var i = lid; i < n; i = i + 64u) {
//for J QUERIES
            {
                let score = weights[$Ju * SPLIT + i];
                weights[$Ju * SPLIT + i] = select(exp_(score - largest($Ju)), 0.0, score <= LEAST);
            }
//end
        }
        workgroupBarrier();
        for (var i = lid; i < QUERIES * 8u; i = i + 64u) {
            var sum = 0.0;
            for (var k = i % 8u * 16u; k < min(i % 8u * 16u + 16u, n); k = k + 1u) {
                sum = sum + weights[i / 8u * SPLIT + k];
            }
            parts[i] = sum;
        }
//if ONE_QUERY
        for (var i = lid; i < VALUE4 * 4u; i = i + 64u) {
            value_parts[i] = weighted(0u, i % VALUE4, i / VALUE4, split, n, blocks, kv_head);
        }
        workgroupBarrier();
//end
        for (var i = lid; i < QUERIES * VALUE4; i = i + 64u) {
            let j = i / VALUE4;
            let m = largest(j);
            if (m > LEAST) {
                let d4 = i % VALUE4;
                let new_most = max(most[j], m);
                let old_factor = exp_(most[j] - new_most);
                let new_factor = exp_(m - new_most);
                var sum = vec4<f32>(0.0);
//for J 4
                {
//if ONE_QUERY
                    sum = sum + value_parts[$Ju * VALUE4 + d4];
//else
                    sum = sum + weighted(j, d4, $Ju, split, n, blocks, kv_head);
//end
                }
//end
                acc[i] = fma(acc[i], vec4<f32>(old_factor), sum * new_factor);
            }
        }
        workgroupBarrier();
        if (lid < QUERIES) {
            let m = largest(lid);
            if (m > LEAST) {
                let new_most = max(most[lid], m);
                var sum = 0.0;
                for (var k = 0u; k < 8u; k = k + 1u) {
                    sum = sum + parts[lid * 8u + k];
                }
                sums[lid] = fma(sums[lid], exp_(most[lid] - new_most), sum * exp_(m - new_most));
                most[lid] = new_most;
            }
        }
        workgroupBarrier();
    }

    for (var i = lid; i < QUERIES * VALUE4; i = i + 64u) {
        let j = i / VALUE4;
        if (j / p.tile_heads < n_rows && j % p.tile_heads < n_heads) {
            let head = first_head + j % p.tile_heads;
//if PART
            let part = (((tile_row + j / p.tile_heads) * p.n_kv_heads * p.group + head) * p.n_splits + wid.z)
                * (VALUE4 * 4u + 2u);
            if (i % VALUE4 == 0u) {
                out[part] = most[j];
                out[part + 1u] = sums[j];
            }
            for (var c = 0u; c < 4u; c = c + 1u) {
                out[part + 2u + i % VALUE4 * 4u + c] = acc[i][c];
            }
//else
            var factor = 1.0;
            var sum = sums[j];
            if (p.has_sinks != 0u) {
                let sink = sinks[head];
                let new_most = max(most[j], sink);
                factor = exp_(most[j] - new_most);
                sum = fma(sum, factor, exp_(sink - new_most));
            }
            let v = acc[i] * (factor / sum);
            let at = (tile_row + j / p.tile_heads) * p.out_stride + head * p.value_dim;
            for (var c = 0u; c < 4u; c = c + 1u) {
                let d = i % VALUE4 * 4u + c;
                if (d < p.value_dim) {
                    out[at + d] = v[c];
                }
            }
//end
        }
    }
}
