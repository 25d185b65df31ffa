struct Params {
    // Rows of `x`, or pairs of a row and an expert.
    n: u32,
    // Rows of the matrix.
    rows: u32,
    k4s: u32,
    cols: u32,
    x_stride: u32,
    x_first: u32,
    out_stride: u32,
    out_first: u32,
    w_codes: u32,
    w_scales: u32,
    bias_first: u32,
    has_bias: u32,
    adds: u32,
    // Experts: the first one of this buffer, their number, pairs a row of `x`, where weights of pairs begin, and
    // whether rows are multiplied with them.
    first_expert: u32,
    n_experts: u32,
    pairs_per_row: u32,
    weights_at: u32,
    scales_inputs: u32,
}
var<immediate> p: Params;
//if VECTORS
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
//else
@group(0) @binding(0) var<storage, read> x: array<f32>;
//end
@group(0) @binding(1) var<storage, read> w: array<u32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
//if ROUTED
@group(0) @binding(4) var<storage, read> routes: array<u32>;
//end

// A product is summed over blocks of 32 columns in sixteen sums: sum `s` takes blocks `s`, `s + 16` and so on,
// column by column. The sums are added in order. All kernels of products do this.
const SUMS: u32 = 16u;

// Four elements of a row; zeros behind its end.
fn x4(row: u32, k4: u32) -> vec4<f32> {
//if VECTORS
    if (k4 * 4u >= p.cols) {
        return vec4<f32>(0.0);
    }
    return x[(row * p.x_stride + p.x_first) / 4u + k4];
//else
    let at = row * p.x_stride + p.x_first;
    var values = vec4<f32>(0.0);
    for (var c = 0u; c < 4u; c = c + 1u) {
        if (k4 * 4u + c < p.cols) {
            values[c] = x[at + k4 * 4u + c];
        }
    }
    return values;
//end
}

fn put(row: u32, col: u32, sum: f32, bias_at: u32) {
    var y = sum;
    if (p.has_bias != 0u) {
        y = y + bias[bias_at];
    }
    let at = row * p.out_stride + p.out_first + col;
    if (p.adds != 0u) {
        y = out[at] + y;
    }
    out[at] = y;
}

//include weights
