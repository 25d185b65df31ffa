//! Bytes and bit fields of stored blocks, read and written.

use crate::layout::BLOCK;

/// Bytes `at..at + 2`.
pub(super) fn pair(bytes: &[u8], at: usize) -> [u8; 2] {
    [bytes[at], bytes[at + 1]]
}

/// Bytes `at..at + 2` as a u16.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(pair(bytes, at))
}

/// Bytes `at..at + 4` as a u32.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Bytes `at..at + 4` as an f32.
pub(crate) fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_bits(u32_at(bytes, at))
}

/// Bytes `at..at + 2` as an f16 widened to f32.
pub(crate) fn f16_at(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes(pair(bytes, at)).to_f32()
}

/// The `i`-th nibble.
pub(super) fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 2] >> (4 * (i % 2)) & 15
}

/// Codes of 16 bytes: their low nibbles, then their high ones.
pub(super) fn nibbles(bytes: &[u8]) -> [u8; BLOCK] {
    let mut codes = [0; BLOCK];
    let (low, high) = codes.split_at_mut(16);
    for ((low, high), q) in low.iter_mut().zip(high).zip(&bytes[..16]) {
        (*low, *high) = (q & 15, q >> 4);
    }
    codes
}

/// Codes of five bits: [`nibbles`] of `bytes[4..]`, whose fifth bits are the first four bytes.
pub(super) fn five_bits(bytes: &[u8]) -> [u8; BLOCK] {
    let high = u32_at(bytes, 0);
    let mut codes = nibbles(&bytes[4..]);
    for (j, code) in codes.iter_mut().enumerate() {
        *code |= ((high >> j & 1) as u8) << 4;
    }
    codes
}

/// Writes an f16.
pub(crate) fn put_f16(out: &mut [u8], at: usize, x: f32) {
    out[at..at + 2].copy_from_slice(&half::f16::from_f32(x).to_le_bytes());
}

/// Writes nibbles of 32 codes: element `j` low, element `j + 16` high.
#[inline(always)]
pub(crate) fn put_nibbles(out: &mut [u8], code: impl Fn(usize) -> u8) {
    for (j, out) in out.iter_mut().enumerate() {
        *out = code(j) & 15 | (code(j + 16) & 15) << 4;
    }
}

/// Writes the fifth bits of 32 codes.
#[inline(always)]
pub(crate) fn put_fifth_bits(out: &mut [u8], code: impl Fn(usize) -> u8) {
    let bits = (0..32).fold(0u32, |bits, j| bits | u32::from(code(j) >> 4 & 1) << j);
    out.copy_from_slice(&bits.to_le_bytes());
}
