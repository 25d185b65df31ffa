// The recurrence of a head over the tokens of each sequence: a workgroup a head and a chain of spans, a thread
// a column of the state. Its output is not yet normed.
struct Params {
    n_heads: u32,
    key_dim: u32,
    value_dim: u32,
    stride: u32,
    out_stride: u32,
    query_col: u32,
    key_col: u32,
    value_col: u32,
    // Columns of the strength of the update and of the time.
    beta_col: u32,
    time_col: u32,
    // Heads of values of a head of keys, or heads of keys where those are every such one.
    n_key_heads: u32,
    is_tiled: u32,
    slot: u32,
    window: u32,
    time_least: f32,
    time_most: f32,
    n_chains: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> rates: array<f32>;
@group(0) @binding(2) var<storage, read> times: array<f32>;
@group(0) @binding(3) var<storage, read> skip: array<f32>;
@group(0) @binding(4) var<storage, read_write> states: array<f32>;
@group(0) @binding(5) var<storage, read> chains: array<u32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let head = wid.x;
    let chain = wid.y;
    var key_head = head / (p.n_heads / p.n_key_heads);
    if (p.is_tiled != 0u) {
        key_head = head % p.n_key_heads;
    }
    let matrix = p.window + head * p.key_dim * p.value_dim;
    for (var j = lid; j < p.value_dim; j = j + 64u) {
        for (var entry = chains[chain]; entry < chains[chain + 1u]; entry = entry + 4u) {
            let first_row = chains[entry];
            let n_rows = chains[entry + 1u];
            let origin = chains[entry + 2u];
            let to = chains[entry + 3u] * p.slot + matrix;
            for (var i = 0u; i < p.key_dim; i = i + 1u) {
                var value = 0.0;
                if (origin != 0u) {
                    value = states[(origin - 1u) * p.slot + matrix + i * p.value_dim + j];
                }
                states[to + i * p.value_dim + j] = value;
            }
            for (var row = first_row; row < first_row + n_rows; row = row + 1u) {
                let at = row * p.stride;
                let query = at + p.query_col + key_head * p.key_dim;
                let key = at + p.key_col + key_head * p.key_dim;
                let v = x[at + p.value_col + head * p.value_dim + j];
                var dt = softplus_(x[at + p.time_col + head] + times[head]);
                var sum = 0.0;
//if DELTA
                let decay = exp_(rates[head] * dt);
                var q_squares = 1.0e-6;
                var k_squares = 1.0e-6;
                for (var i = 0u; i < p.key_dim; i = i + 1u) {
                    q_squares = fma(x[query + i], x[query + i], q_squares);
                    k_squares = fma(x[key + i], x[key + i], k_squares);
                }
                let q_factor = sqrt(1.0 / f32(p.key_dim)) / sqrt(q_squares);
                let k_factor = 1.0 / sqrt(k_squares);
                var recalled = 0.0;
                for (var i = 0u; i < p.key_dim; i = i + 1u) {
                    let s = states[to + i * p.value_dim + j] * decay;
                    states[to + i * p.value_dim + j] = s;
                    recalled = fma(s, x[key + i] * k_factor, recalled);
                }
                let update = sigmoid_(x[at + p.beta_col + head]) * (v - recalled);
                for (var i = 0u; i < p.key_dim; i = i + 1u) {
                    let s = fma(x[key + i] * k_factor, update, states[to + i * p.value_dim + j]);
                    states[to + i * p.value_dim + j] = s;
                    sum = fma(s, x[query + i] * q_factor, sum);
                }
//else
                dt = clamp(dt, p.time_least, p.time_most);
                let decay = exp_(rates[head] * dt);
                for (var i = 0u; i < p.key_dim; i = i + 1u) {
                    let s = fma(decay, states[to + i * p.value_dim + j], x[key + i] * dt * v);
                    states[to + i * p.value_dim + j] = s;
                    sum = fma(s, x[query + i], sum);
                }
                sum = fma(skip[head], v, sum);
//end
                out[row * p.out_stride + head * p.value_dim + j] = sum;
            }
        }
    }
}
