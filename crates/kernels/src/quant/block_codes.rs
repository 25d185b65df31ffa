//! Splits stored blocks into codes and scales for packing, without rounding. Does not know where in a panel they go.

use super::dequantize_k::{iq4_xs_scale, q3_k_scale, q4_k_scale_min};
use super::stored_block::BlockCodes;
use super::{Format, grids};
use crate::layout::BLOCK;

/// Block `b` (of 32 columns) of a stored row.
pub(super) fn block_codes(format: Format, row: &[u8], b: usize) -> BlockCodes {
    let per_stored = format.block_elements() / BLOCK;
    let stored = &row[b / per_stored * format.block_bytes()..][..format.block_bytes()];
    match per_stored {
        1 => simple(format, stored),
        8 if (Format::Q2_K..=Format::IQ4_XS).contains(&format) => superblock(format, stored, b % per_stored),
        _ => grids::block_codes(format, stored, b % per_stored),
    }
}

fn pair(bytes: &[u8], at: usize) -> [u8; 2] {
    [bytes[at], bytes[at + 1]]
}

fn simple(format: Format, s: &[u8]) -> BlockCodes {
    let mut codes = [0; BLOCK];
    let mut nibbles = |at: usize| halves(&mut codes, &s[at..]);
    let mut fifth = None;
    let mut min = [0; 2];
    match format {
        Format::Q8_0 => std::iter::zip(&mut codes, &s[2..34]).for_each(|(c, q)| *c = q ^ 0x80),
        Format::Q4_0 | Format::IQ4_NL => nibbles(2),
        Format::Q4_1 => {
            nibbles(4);
            min = pair(s, 2);
        }
        Format::Q5_0 => {
            nibbles(6);
            fifth = Some(2);
        }
        Format::Q5_1 => {
            nibbles(8);
            fifth = Some(4);
            min = pair(s, 2);
        }
        Format::MXFP4 => nibbles(1),
        _ => unreachable!("{} has no blocks of 32", format.name()),
    }
    if let Some(at) = fifth {
        let bits = u32::from_le_bytes([s[at], s[at + 1], s[at + 2], s[at + 3]]);
        for (j, code) in codes.iter_mut().enumerate() {
            *code |= ((bits >> j & 1) as u8) << 4;
        }
    }
    let scale = if format == Format::MXFP4 { [s[0], 0] } else { pair(s, 0) };
    BlockCodes { codes, scales: [scale, min], superscales: [[0; 2]; 2] }
}

fn superblock(format: Format, s: &[u8], b: usize) -> BlockCodes {
    // A block's codes are bit fields of 32 consecutive bytes from `at` on.
    let bits = |at: usize, shift: usize, mask: u8| -> [u8; BLOCK] {
        let bytes: &[u8; BLOCK] = s[at..].first_chunk().expect("inside the superblock");
        bytes.map(|byte| byte >> shift & mask)
    };
    let joined = |low: [u8; BLOCK], high: [u8; BLOCK], shift: usize| -> [u8; BLOCK] {
        std::array::from_fn(|i| low[i] | high[i] << shift)
    };
    // Four blocks share bytes for 2-bit fields, two blocks for nibbles.
    let two_bits = |at: usize| bits(at + b / 4 * BLOCK, b % 4 * 2, 3);
    let nibbles = |at: usize| bits(at + b / 2 * BLOCK, b % 2 * 4, 15);
    let one = |x: u8| [x, 0];
    let none = [0; 2];
    let (codes, scales, superscales) = match format {
        Format::Q2_K => (two_bits(16), [one(s[2 * b]), one(s[2 * b + 1])], [pair(s, 80), pair(s, 82)]),
        Format::Q3_K => {
            let scale = |j| one(q3_k_scale(&s[96..108], j) as u8);
            let codes = joined(two_bits(32), bits(0, b, 1), 2);
            (codes, [scale(2 * b), scale(2 * b + 1)], [pair(s, 108), none])
        }
        Format::Q4_K | Format::Q5_K => {
            let (scale, min) = q4_k_scale_min(&s[4..16], b);
            let codes = match format {
                Format::Q4_K => nibbles(16),
                _ => joined(nibbles(48), bits(16, b, 1), 4),
            };
            (codes, [one(scale), one(min)], [pair(s, 0), pair(s, 2)])
        }
        Format::Q6_K => {
            // Blocks two apart share bytes for their nibbles.
            let low = bits(b / 4 * 64 + b % 2 * BLOCK, b % 4 / 2 * 4, 15);
            let codes = joined(low, two_bits(128), 4);
            (codes, [one(s[192 + 2 * b]), one(s[193 + 2 * b])], [pair(s, 208), none])
        }
        Format::IQ4_XS => {
            let mut codes = [0; BLOCK];
            halves(&mut codes, &s[8 + 16 * b..]);
            (codes, [one(iq4_xs_scale(s, b) as u8), none], [pair(s, 0), none])
        }
        _ => unreachable!("{} has no superblocks", format.name()),
    };
    BlockCodes { codes, scales, superscales }
}

/// Sixteen bytes' low nibbles, then their high ones.
fn halves(codes: &mut [u8; BLOCK], bytes: &[u8]) {
    let (low, high) = codes.split_at_mut(16);
    for ((low, high), q) in low.iter_mut().zip(high).zip(&bytes[..16]) {
        (*low, *high) = (q & 15, q >> 4);
    }
}
