// Operations on each element of adjacent groups of columns of `x`, in place.
struct Params {
    n: u32,
    // Columns: groups of `width` from `first` on, `stride` apart.
    width: u32,
    x_stride: u32,
    x_first: u32,
    y_stride: u32,
    y_first: u32,
    scale: f32,
    cap: f32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
//if HAS_Y
@group(0) @binding(1) var<storage, read> y: array<f32>;
//end

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
    let i = (wid.x + wid.y * nwg.x) * 64u + lid;
    if (i >= p.n) {
        return;
    }
    let row = i / p.width;
    let col = i % p.width;
    let at = row * p.x_stride + p.x_first + col;
//if ADD
    x[at] = fma(y[row * p.y_stride + p.y_first + col], p.scale, x[at]);
//end
//if GATE_ROWS
    x[at] = x[at] * sigmoid_(y[row]);
//end
//if GATE_COLUMNS
    x[at] = x[at] * sigmoid_(y[row * p.y_stride + p.y_first + col]);
//end
//if SCALE
    let scaled = x[at] * p.scale;
    x[at] = select(scaled, p.cap * tanh_(scaled / p.cap), p.cap != 0.0);
//end
}
