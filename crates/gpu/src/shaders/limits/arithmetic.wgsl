// Multiplications and additions in registers: eight chains a thread, which the driver cannot know the ends of.
//if F16
enable f16;
alias Number = vec4<f16>;
//end
//if F32
alias Number = vec4<f32>;
//end
//if INT8
alias Number = vec4<i32>;
//end
struct Params {
    n_rounds: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> start: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

//if INT8
fn next(x: Number, a: u32) -> Number {
    return vec4<i32>(
        x.x + dot4I8Packed(bitcast<u32>(x.x), a),
        x.y + dot4I8Packed(bitcast<u32>(x.y), a),
        x.z + dot4I8Packed(bitcast<u32>(x.z), a),
        x.w + dot4I8Packed(bitcast<u32>(x.w), a),
    );
}
//else
fn next(x: Number, a: Number) -> Number {
    return fma(x, a, a);
}
//end

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let seed = start[id.x % 16u];
//if INT8
    let a = seed | 0x01010101u;
//else
    let a = Number(vec4<f32>(f32(seed % 7u) * 0.1));
//end
//for J 8
    var x$J = Number(vec4<f32>(f32(seed % 5u) + f32($J)));
//end
    for (var i = 0u; i < p.n_rounds; i = i + 1u) {
//for J 8
        x$J = next(x$J, a);
//end
    }
    var sum = Number(vec4<f32>(0.0));
//for J 8
    sum = sum + x$J;
//end
    out[id.x] = f32(sum.x) + f32(sum.y) + f32(sum.z) + f32(sum.w);
}
