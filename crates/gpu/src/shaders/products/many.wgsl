// Products of many rows: a workgroup makes 64 output columns of 16 * TOKENS rows from tiles in shared memory.
//include params

var<workgroup> xs: array<f32, 32u * TOKENS * 16u>;
var<workgroup> ws: array<f32, 32u * 64u>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
    let first_col = (wid.x + wid.z * nwg.x) * 64u;
    let first_row = wid.y * TOKENS * 16u;
    let c = lid % 16u;
    let r = lid / 16u;
    let n_blocks = p.k4s / 8u;
//for J TOKENS
    var sum$J = vec4<f32>(0.0);
//end
    for (var s = 0u; s < SUMS; s = s + 1u) {
//for J TOKENS
        var acc$J = vec4<f32>(0.0);
//end
        for (var b = s; b < n_blocks; b = b + SUMS) {
            for (var i = lid; i < 512u; i = i + 256u) {
                let v = w4(min(first_col + i / 8u, p.rows - 1u), b * 8u + i % 8u);
                let at = i % 8u * 256u + i / 8u;
                ws[at] = v.x;
                ws[at + 64u] = v.y;
                ws[at + 128u] = v.z;
                ws[at + 192u] = v.w;
            }
            for (var i = lid; i < 128u * TOKENS; i = i + 256u) {
                let v = x4(min(first_row + i / 8u, p.n - 1u), b * 8u + i % 8u);
                let at = i % 8u * 64u * TOKENS + i / 8u;
                xs[at] = v.x;
                xs[at + 16u * TOKENS] = v.y;
                xs[at + 32u * TOKENS] = v.z;
                xs[at + 48u * TOKENS] = v.w;
            }
            workgroupBarrier();
            for (var k = 0u; k < 32u; k = k + 1u) {
                let v = vec4<f32>(ws[k * 64u + c], ws[k * 64u + c + 16u], ws[k * 64u + c + 32u],
                                  ws[k * 64u + c + 48u]);
//for J TOKENS
                acc$J = fma(v, vec4<f32>(xs[k * 16u * TOKENS + r + $Ju * 16u]), acc$J);
//end
            }
            workgroupBarrier();
        }
//for J TOKENS
        sum$J = sum$J + acc$J;
//end
    }
//for J TOKENS
    if (first_row + r + $Ju * 16u < p.n) {
        for (var i = 0u; i < 4u; i = i + 1u) {
            let col = first_col + c + i * 16u;
            if (col < p.rows) {
                put(first_row + r + $Ju * 16u, col, sum$J[i], p.bias_first + col);
            }
        }
    }
//end
}
