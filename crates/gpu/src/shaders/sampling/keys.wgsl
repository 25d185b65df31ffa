const NONE: u32 = 0xffffffffu;

// Greater keys are greater logits, and both zeros have one key. A NaN and +∞ have the greatest key of all.
fn key_of(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u || bits == 0x7f800000u) {
        return 0xffffffffu;
    }
    if (magnitude == 0u) {
        return 0x80000000u;
    }
    if ((bits >> 31u) == 1u) {
        return ~bits;
    }
    return bits | 0x80000000u;
}

// Whether a candidate, a key and a token, stands before another: the greater key, then the smaller token.
fn is_before(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x > b.x || (a.x == b.x && a.y < b.y);
}
