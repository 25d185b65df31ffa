// Four weights of a row, exact in f32, from the device's layout of each format.

//if F32
fn w4(row: u32, k4: u32) -> vec4<f32> {
    let i = p.w_codes + (row * p.k4s + k4) * 4u;
    return bitcast<vec4<f32>>(vec4<u32>(w[i], w[i + 1u], w[i + 2u], w[i + 3u]));
}
//end
//if F16
fn w4(row: u32, k4: u32) -> vec4<f32> {
    let i = p.w_codes + (row * p.k4s + k4) * 2u;
    return vec4<f32>(unpack2x16float(w[i]), unpack2x16float(w[i + 1u]));
}
//end
//if BF16
fn w4(row: u32, k4: u32) -> vec4<f32> {
    let i = p.w_codes + (row * p.k4s + k4) * 2u;
    let a = w[i];
    let b = w[i + 1u];
    return bitcast<vec4<f32>>(vec4<u32>(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
}
//end
//if HALVES
fn half_scale(i: u32) -> f32 {
    let pair = unpack2x16float(w[p.w_scales + i / 2u]);
    return select(pair.x, pair.y, (i & 1u) == 1u);
}
//end
//if Q8_0
fn w4(row: u32, k4: u32) -> vec4<f32> {
    let i = row * p.k4s + k4;
    return vec4<f32>(unpack4xI8(w[p.w_codes + i])) * half_scale(i / 8u);
}
//end
//if NIBBLES
fn nibbles(block: u32, q: u32) -> vec4<u32> {
    return unpack4xU8((w[p.w_codes + block * 4u + q % 4u] >> (4u * (q / 4u))) & 0x0f0f0f0fu);
}
//end
//if Q4_0
fn w4(row: u32, k4: u32) -> vec4<f32> {
    let i = row * p.k4s + k4;
    return (vec4<f32>(nibbles(i / 8u, i % 8u)) - 8.0) * half_scale(i / 8u);
}
//end
//if Q4_1
fn w4(row: u32, k4: u32) -> vec4<f32> {
    let i = row * p.k4s + k4;
    let scale_min = unpack2x16float(w[p.w_scales + i / 8u]);
    return vec4<f32>(nibbles(i / 8u, i % 8u)) * scale_min.x + scale_min.y;
}
//end
//if FIVE_BITS
// Codes of five bits: a word of fifth bits, then nibbles.
fn five_bits(block: u32, q: u32) -> vec4<u32> {
    let at = p.w_codes + block * 5u;
    let low = unpack4xU8((w[at + 1u + q % 4u] >> (4u * (q / 4u))) & 0x0f0f0f0fu);
    let fifth = vec4<u32>(w[at] >> (4u * q)) >> vec4<u32>(0u, 1u, 2u, 3u);
    return low | ((fifth & vec4<u32>(1u)) << vec4<u32>(4u));
}
//end
//if Q5_0
fn w4(row: u32, k4: u32) -> vec4<f32> {
    let i = row * p.k4s + k4;
    return (vec4<f32>(five_bits(i / 8u, i % 8u)) - 16.0) * half_scale(i / 8u);
}
//end
//if Q5_1
fn w4(row: u32, k4: u32) -> vec4<f32> {
    let i = row * p.k4s + k4;
    let scale_min = unpack2x16float(w[p.w_scales + i / 8u]);
    return vec4<f32>(five_bits(i / 8u, i % 8u)) * scale_min.x + scale_min.y;
}
//end
//if MXFP4
fn e2m1(code: u32) -> f32 {
    let e = (code >> 1u) & 3u;
    let f = code & 1u;
    let m = f32(select((2u + f) << (max(e, 1u) - 1u), f, e == 0u));
    return select(m, -m, (code & 8u) != 0u);
}

fn w4(row: u32, k4: u32) -> vec4<f32> {
    let i = row * p.k4s + k4;
    let block = i / 8u;
    let e = (w[p.w_scales + block / 4u] >> (8u * (block % 4u))) & 0xffu;
    let scale = bitcast<f32>(select((e - 1u) << 23u, 0x00200000u << e, e < 2u));
    let c = nibbles(block, i % 8u);
    return vec4<f32>(e2m1(c.x), e2m1(c.y), e2m1(c.z), e2m1(c.w)) * scale;
}
//end
//if K_HEAD
// Byte `i` of the scales behind the first word of a superblock.
fn head_byte(at: u32, i: u32) -> u32 {
    return (w[at + 1u + i / 4u] >> (8u * (i % 4u))) & 0xffu;
}

// Scale and min of a block of 32.
fn scale_min(at: u32, b: u32) -> vec2<f32> {
    var scale = 0u;
    var least = 0u;
    if (b < 4u) {
        scale = head_byte(at, b) & 63u;
        least = head_byte(at, b + 4u) & 63u;
    } else {
        scale = (head_byte(at, b + 4u) & 15u) | ((head_byte(at, b - 4u) >> 6u) << 4u);
        least = (head_byte(at, b + 4u) >> 4u) | ((head_byte(at, b) >> 6u) << 4u);
    }
    return unpack2x16float(w[at]) * vec2<f32>(f32(scale), f32(least));
}
//end
//if Q4_K
fn w4(row: u32, k4: u32) -> vec4<f32> {
    let i = row * p.k4s + k4;
    let at = p.w_codes + i / 64u * 36u;
    let b = i % 64u / 8u;
    let low = (w[at + 4u + b / 2u * 8u + i % 8u] >> (4u * (b % 2u))) & 0x0f0f0f0fu;
    let s = scale_min(at, b);
    return vec4<f32>(unpack4xU8(low)) * s.x - s.y;
}
//end
//if Q5_K
fn w4(row: u32, k4: u32) -> vec4<f32> {
    let i = row * p.k4s + k4;
    let at = p.w_codes + i / 64u * 44u;
    let b = i % 64u / 8u;
    let low = (w[at + 12u + b / 2u * 8u + i % 8u] >> (4u * (b % 2u))) & 0x0f0f0f0fu;
    let high = ((w[at + 4u + i % 8u] >> b) & 0x01010101u) << 4u;
    let s = scale_min(at, b);
    return vec4<f32>(unpack4xU8(low | high)) * s.x - s.y;
}
//end
//if Q6_K
fn w4(row: u32, k4: u32) -> vec4<f32> {
    let i = row * p.k4s + k4;
    let superblock = i / 64u;
    let at = p.w_codes + superblock * 52u;
    let half = i % 64u / 32u;
    let b = i % 32u / 8u;
    let q = i % 8u;
    let low = (w[at + half * 16u + b % 2u * 8u + q] >> (4u * (b / 2u))) & 0x0f0f0f0fu;
    let high = ((w[at + 32u + half * 8u + q] >> (2u * b)) & 0x03030303u) << 4u;
    let sixteen = i % 64u / 4u;
    let scales = unpack4xI8(w[at + 48u + sixteen / 4u]);
    let scale = half_scale(superblock) * f32(scales[sixteen % 4u]);
    return (vec4<f32>(unpack4xU8(low | high)) - 32.0) * scale;
}
//end
