// Products of few rows: sixteen threads share an output column, a sum each.
//include params

var<workgroup> partial: array<f32, TOKENS * 64u>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
    let tile = wid.x + wid.z * nwg.x;
    let col = tile * 4u + lid / SUMS;
    let s = lid % SUMS;
    let n_blocks = p.k4s / 8u;
//if ROUTED
    let pair = wid.y;
    let expert = routes[pair];
    if (expert < p.first_expert || expert >= p.first_expert + p.n_experts) {
        return;
    }
    let row = (expert - p.first_expert) * p.rows + min(col, p.rows - 1u);
    let origin = pair / p.pairs_per_row;
    var factor = 1.0;
    if (p.scales_inputs != 0u) {
        factor = bitcast<f32>(routes[p.weights_at + pair]);
    }
    let first = pair;
//else
    let row = min(col, p.rows - 1u);
    let first = wid.y * TOKENS;
//end
//for J TOKENS
    var acc$J = 0.0;
//end
    for (var b = s; b < n_blocks; b = b + SUMS) {
        for (var q = 0u; q < 8u; q = q + 1u) {
            let k4 = b * 8u + q;
            let v = w4(row, k4);
//if ROUTED
            acc0 = dot4(v, x4(origin, k4) * factor, acc0);
//else
//for J TOKENS
            acc$J = dot4(v, x4(min(first + $Ju, p.n - 1u), k4), acc$J);
//end
//end
        }
    }
//for J TOKENS
    partial[$Ju * 64u + lid] = acc$J;
//end
    workgroupBarrier();
    if (s < TOKENS && first + s < p.n && col < p.rows) {
        var sum = 0.0;
        for (var i = 0u; i < SUMS; i = i + 1u) {
            sum = sum + partial[s * 64u + lid / SUMS * SUMS + i];
        }
//if ROUTED
        put(pair, col, sum, p.bias_first + expert * p.out_stride + col);
//else
        put(first + s, col, sum, p.bias_first + col);
//end
    }
}
