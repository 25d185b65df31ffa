//! Sums over ranks in a fixed order. Does not know where the summands of other ranks come from.

use std::ops::Range;

/// Numbers to be summed over ranks, in place.
#[derive(Debug)]
pub enum Summands<'a> {
    /// Summands in 32-bit floats.
    F32(&'a mut [f32]),
    /// Summands in bfloat16, as bits.
    Bf16(&'a mut [u16]),
}

/// Maximum number of elements that are summed at a time: a level of the recursion holds them on the stack.
pub(crate) const BLOCK: usize = 256;

/// Sums over `ranks`: the first half of them plus the second half. `read` fills a slice with the summands of
/// a rank. `out` has at most [`BLOCK`] elements.
pub(crate) fn sum_over(ranks: Range<usize>, out: &mut [f32], read: &mut dyn FnMut(usize, &mut [f32])) {
    if ranks.len() == 1 {
        return read(ranks.start, out);
    }
    let middle = ranks.start + ranks.len() / 2;
    sum_over(ranks.start..middle, out, read);
    let mut second = [0.0; BLOCK];
    let second = &mut second[..out.len()];
    sum_over(middle..ranks.end, second, read);
    out.iter_mut().zip(second).for_each(|(sum, x)| *sum += *x);
}

/// The number that these bits encode in bfloat16.
pub(crate) fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bfloat16, the even one of two; a NaN stays one.
pub(crate) fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return ((bits >> 16) | 0x40) as u16;
    }
    (bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_a_tree_by_rank() {
        let of_rank = [1.0e8_f32, 1.0, -1.0e8, 1.0, 3.0];
        let sum = |n: usize| {
            let mut out = [0.0];
            sum_over(0..n, &mut out, &mut |rank, out| out[0] = of_rank[rank]);
            out[0]
        };
        let [a, b, c, d, e] = of_rank;
        assert_eq!(sum(1), a);
        assert_eq!(sum(3), a + (b + c));
        assert_eq!(sum(4), (a + b) + (c + d));
        assert_eq!(sum(5), (a + b) + (c + (d + e)));
    }

    #[test]
    fn bf16_is_rounded_to_the_nearest_even() {
        for (bits, rounded) in [
            (0x3F80_0000_u32, 0x3F80),
            (0x3F80_8000, 0x3F80),
            (0x3F81_8000, 0x3F82),
            (0x3F80_8001, 0x3F81),
            (0x7F80_0000, 0x7F80),
            (0xFF80_0000, 0xFF80),
            (0x7F7F_FFFF, 0x7F80),
        ] {
            assert_eq!(to_bf16(f32::from_bits(bits)), rounded, "{bits:#x}");
        }
        assert!(from_bf16(to_bf16(f32::from_bits(0x7F80_0001))).is_nan());
    }
}
