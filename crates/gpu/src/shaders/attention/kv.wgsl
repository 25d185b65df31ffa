// Four elements of keys and values of a token, in a panel: a block of sixteen tokens of a KV head. Keys are
// `[elements][tokens]`, values `[tokens][elements]`.

//if KV_F32
fn key4(panel: u32, d4: u32, slot: u32) -> vec4<f32> {
    let at = panel + d4 * 64u + slot;
    return bitcast<vec4<f32>>(vec4<u32>(keys[at], keys[at + 16u], keys[at + 32u], keys[at + 48u]));
}
//end
//if KV_F16
fn key4(panel: u32, d4: u32, slot: u32) -> vec4<f32> {
    let at = panel + d4 * 32u + slot;
    return vec4<f32>(unpack2x16float(keys[at]), unpack2x16float(keys[at + 16u]));
}
//end
//if KV_BF16
fn widen(a: u32, b: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
}

fn key4(panel: u32, d4: u32, slot: u32) -> vec4<f32> {
    let at = panel + d4 * 32u + slot;
    return widen(keys[at], keys[at + 16u]);
}
//end
//if KV_Q8_0
fn key4(panel: u32, d4: u32, slot: u32) -> vec4<f32> {
    let scale = bitcast<f32>(keys[panel + DIM4 * 16u + d4 / 8u * 16u + slot]);
    return vec4<f32>(unpack4xI8(keys[panel + d4 * 16u + slot])) * scale;
}
//end

//if !NO_VALUES
//if VALUES_IN_KEYS
fn value4(panel: u32, d4: u32, slot: u32) -> vec4<f32> {
    return key4(panel, p.values_from4 + d4, slot);
}
//else
//if KV_F32
fn value4(panel: u32, d4: u32, slot: u32) -> vec4<f32> {
    let at = panel + (slot * DIM4 + d4) * 4u;
    return bitcast<vec4<f32>>(vec4<u32>(values[at], values[at + 1u], values[at + 2u], values[at + 3u]));
}
//end
//if KV_F16
fn value4(panel: u32, d4: u32, slot: u32) -> vec4<f32> {
    let at = panel + (slot * DIM4 + d4) * 2u;
    return vec4<f32>(unpack2x16float(values[at]), unpack2x16float(values[at + 1u]));
}
//end
//if KV_BF16
fn value4(panel: u32, d4: u32, slot: u32) -> vec4<f32> {
    let at = panel + (slot * DIM4 + d4) * 2u;
    return widen(values[at], values[at + 1u]);
}
//end
//if KV_Q8_0
fn value4(panel: u32, d4: u32, slot: u32) -> vec4<f32> {
    let scale = bitcast<f32>(values[panel + DIM4 * 16u + slot * (DIM4 / 8u) + d4 / 8u]);
    return vec4<f32>(unpack4xI8(values[panel + slot * DIM4 + d4])) * scale;
}
//end
//end
//end
