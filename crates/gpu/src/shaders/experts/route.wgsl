// The experts of each row in increasing order, and their weights: a workgroup a row.
struct Params {
    n: u32,
    n_experts: u32,
    n_used: u32,
    // 0: softmax, 1: sigmoid, 2: SparseMixer.
    score: u32,
    normalizes: u32,
    has_bias: u32,
    has_scales: u32,
    scale: f32,
    jitter: f32,
    n_groups: u32,
    n_used_groups: u32,
    n_summed: u32,
    first_row: u32,
    weights_at: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> bias: array<f32>;
@group(0) @binding(2) var<storage, read> scales: array<f32>;
@group(0) @binding(3) var<storage, read_write> routes: array<u32>;

const LEAST: f32 = -3.0e38;

var<workgroup> scores: array<f32, EXPERTS>;
var<workgroup> left: array<f32, EXPERTS>;
var<workgroup> group_scores: array<f32, 64>;
var<workgroup> values: array<f32, 64>;
var<workgroup> indices: array<u32, 64>;
var<workgroup> chosen: array<u32, 64>;
var<workgroup> chosen_weights: array<f32, 64>;

fn total(lid: u32, value: f32) -> f32 {
    values[lid] = value;
    workgroupBarrier();
    for (var half = 32u; half > 0u; half = half / 2u) {
        if (lid < half) {
            values[lid] = values[lid] + values[lid + half];
        }
        workgroupBarrier();
    }
    let sum = values[0];
    workgroupBarrier();
    return sum;
}

// Index of the largest number that is left; of equals the smallest.
fn best(lid: u32) -> u32 {
    var value = LEAST;
    var at = 0xffffffffu;
    for (var e = lid; e < p.n_experts; e = e + 64u) {
        if (at == 0xffffffffu || left[e] > value) {
            value = left[e];
            at = e;
        }
    }
    values[lid] = value;
    indices[lid] = at;
    workgroupBarrier();
    for (var half = 32u; half > 0u; half = half / 2u) {
        if (lid < half) {
            let other = indices[lid + half];
            let v = values[lid + half];
            if (other != 0xffffffffu
                && (v > values[lid] || (v == values[lid] && other < indices[lid]))) {
                values[lid] = v;
                indices[lid] = other;
            }
        }
        workgroupBarrier();
    }
    let found = indices[0];
    workgroupBarrier();
    return found;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
    let row = wid.x + wid.y * nwg.x;
    if (row >= p.n) {
        return;
    }
    let at = (p.first_row + row) * p.n_experts;
    var largest = LEAST;
    for (var e = 0u; e < p.n_experts; e = e + 1u) {
        largest = max(largest, logits[at + e]);
    }
    var part = 0.0;
    for (var e = lid; e < p.n_experts; e = e + 64u) {
        var s = logits[at + e];
        if (p.score == 0u) {
            s = exp_(s - largest);
            part = part + s;
        } else if (p.score == 1u) {
            s = sigmoid_(s);
        }
        scores[e] = s;
    }
    let sum_of_all = total(lid, part);
    for (var e = lid; e < p.n_experts; e = e + 64u) {
        if (p.score == 0u) {
            scores[e] = scores[e] / sum_of_all;
        }
        var s = scores[e];
        if (p.has_bias != 0u) {
            s = s + bias[e];
        }
        left[e] = s;
    }
    workgroupBarrier();
    if (p.n_groups > 0u) {
        let size = p.n_experts / p.n_groups;
        if (lid < p.n_groups) {
            // The sum of the best of a group, the best first.
            var sum = 0.0;
            var last = 3.4e38;
            var last_at = 0u;
            for (var i = 0u; i < p.n_summed; i = i + 1u) {
                var value = LEAST;
                var found = 0xffffffffu;
                for (var e = lid * size; e < lid * size + size; e = e + 1u) {
                    let v = left[e];
                    let is_behind = v < last || (v == last && e > last_at);
                    if (is_behind && (found == 0xffffffffu || v > value)) {
                        value = v;
                        found = e;
                    }
                }
                sum = sum + value;
                last = value;
                last_at = found;
            }
            group_scores[lid] = sum;
        }
        workgroupBarrier();
        if (lid < p.n_groups) {
            var n_better = 0u;
            for (var g = 0u; g < p.n_groups; g = g + 1u) {
                let v = group_scores[g];
                if (v > group_scores[lid] || (v == group_scores[lid] && g < lid)) {
                    n_better = n_better + 1u;
                }
            }
            if (n_better >= p.n_used_groups) {
                for (var e = lid * size; e < lid * size + size; e = e + 1u) {
                    left[e] = LEAST;
                }
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < p.n_used; i = i + 1u) {
        let found = best(lid);
        var weight = scores[found];
        if (p.score == 2u) {
            let most = left[found];
            var near = 0.0;
            for (var e = lid; e < p.n_experts; e = e + 64u) {
                let v = left[e];
                if (v > LEAST && (most - v) / max(abs(v), most) <= 2.0 * p.jitter) {
                    near = near + exp_(v - most);
                }
            }
            weight = 1.0 / total(lid, near);
        }
        workgroupBarrier();
        if (lid == 0u) {
            left[found] = LEAST;
            // Inserted in increasing order.
            var k = i;
            while (k > 0u && chosen[k - 1u] > found) {
                chosen[k] = chosen[k - 1u];
                chosen_weights[k] = chosen_weights[k - 1u];
                k = k - 1u;
            }
            chosen[k] = found;
            chosen_weights[k] = weight;
        }
        workgroupBarrier();
    }
    if (lid < p.n_used) {
        var sum = 1.0;
        if (p.normalizes != 0u && p.score != 2u) {
            sum = 0.0;
            for (var i = 0u; i < p.n_used; i = i + 1u) {
                sum = sum + chosen_weights[i];
            }
        }
        var weight = chosen_weights[lid] / sum;
        if (p.has_scales != 0u) {
            weight = weight * scales[chosen[lid]];
        }
        routes[row * p.n_used + lid] = chosen[lid];
        routes[p.weights_at + row * p.n_used + lid] = bitcast<u32>(weight * p.scale);
    }
}
