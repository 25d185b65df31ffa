//! A block's scales and mins as f16, each duplicated for the two columns of a pair.
//!
//! f16 multiplies thirty-two scales and mins at once; in f32 this would take a quarter of the time of
//! unpacking a block's codes.

use std::arch::x86_64::*;

use crate::layout::ScaleKind;

/// Implements [`super::SimdIsa::pair_scales`].
///
/// # Safety
/// AVX-512 FP16 must be available, and memory valid as [`ScaleKind`] requires.
#[inline(always)]
pub(super) unsafe fn pair_scales(
    kind: ScaleKind,
    supers: *const u8,
    scales: *const u8,
    power: u16,
) -> [[__m512i; 2]; 2] {
    // SAFETY: the features are available and pointers are valid, by the caller.
    unsafe {
        let power = _mm512_castsi512_ph(_mm512_set1_epi16(power as i16));
        let in_eighths = matches!(kind, ScaleKind::SuperEighths | ScaleKind::SuperHalvesEighths);
        let three = _mm512_castsi512_ph(_mm512_set1_epi16(half::f16::from_f32_const(3.0).to_bits() as i16));
        let power = if in_eighths { _mm512_sub_ph(power, three) } else { power };
        let scaled = |halves| _mm512_scalef_ph(_mm512_castsi512_ph(halves), power);
        let sixteen = |p: *const u8| _mm256_loadu_si256(p.cast());
        let twice = |p: *const u8| scaled(_mm512_broadcast_i64x4(sixteen(p)));
        let one = |scale| [[scale; 2]; 2];
        match kind {
            ScaleKind::F16 => one(lower(scaled(_mm512_castsi256_si512(sixteen(scales))))),
            ScaleKind::Exponent => {
                let exponents = _mm256_cvtepu8_epi16(_mm_loadu_si128(scales.cast()));
                let exponents = _mm256_sub_epi16(exponents, _mm256_set1_epi16(128));
                let exponents = _mm512_cvtepi16_ph(_mm512_castsi256_si512(exponents));
                let one_half = _mm512_set1_epi16(half::f16::ONE.to_bits() as i16);
                let by = _mm512_add_ph(exponents, power);
                one(lower(_mm512_scalef_ph(_mm512_castsi512_ph(one_half), by)))
            }
            ScaleKind::F16Min => {
                let both = scaled(_mm512_loadu_si512(scales.cast()));
                [[lower(both), upper(both)]; 2]
            }
            ScaleKind::E4m3Halves => {
                // In f32: a factor may be beyond the range of f16.
                let power = _mm512_cvtxph_ps(_mm512_castph512_ph256(power));
                let factors = _mm512_scalef_ps(_mm512_loadu_ps(supers.cast()), power);
                [[of_e4m3(scales, factors); 2], [of_e4m3(scales.add(16), factors); 2]]
            }
            ScaleKind::Super | ScaleKind::SuperEighths => {
                let of_blocks = _mm256_cvtepi8_epi16(_mm_loadu_si128(scales.cast()));
                let of_blocks = _mm512_cvtepi16_ph(_mm512_castsi256_si512(of_blocks));
                one(lower(_mm512_mul_ph(scaled(_mm512_castsi256_si512(sixteen(supers))), of_blocks)))
            }
            ScaleKind::SuperHalves | ScaleKind::SuperHalvesEighths => {
                let of_halves = _mm512_cvtepi16_ph(_mm512_cvtepi8_epi16(sixteen(scales)));
                let both = _mm512_mul_ph(twice(supers), of_halves);
                [[lower(both); 2], [upper(both); 2]]
            }
            ScaleKind::SuperMin => {
                let of_block = _mm512_cvtepu16_ph(_mm512_cvtepu8_epi16(sixteen(scales)));
                let both = _mm512_mul_ph(scaled(_mm512_loadu_si512(supers.cast())), of_block);
                [[lower(both), upper(negative(both))]; 2]
            }
            ScaleKind::SuperHalvesMin => {
                let nibbles = _mm512_cvtepu8_epi16(sixteen(scales));
                let low = _mm512_and_si512(nibbles, _mm512_set1_epi16(15));
                let scales = _mm512_mul_ph(twice(supers), _mm512_cvtepu16_ph(low));
                let high = _mm512_srli_epi16::<4>(nibbles);
                let mins = negative(_mm512_mul_ph(twice(supers.add(32)), _mm512_cvtepu16_ph(high)));
                [[lower(scales), lower(mins)], [upper(scales), upper(mins)]]
            }
        }
    }
}

/// Sixteen numbers of E4M3 without a sign, a 256th of each multiplied with its factor, each duplicated.
#[inline(always)]
unsafe fn of_e4m3(codes: *const u8, factors: __m512) -> __m512i {
    // SAFETY: the features are available and the codes can be read, by the caller.
    unsafe {
        // The bits of E4M3, moved, are those of a 256th of its number in f16.
        let bits = _mm256_slli_epi16::<7>(_mm256_cvtepu8_epi16(_mm_loadu_si128(codes.cast())));
        let numbers = _mm512_cvtxph_ps(_mm256_castsi256_ph(bits));
        lower(_mm512_castph256_ph512(_mm512_cvtxps_ph(_mm512_mul_ps(numbers, factors))))
    }
}

/// The first sixteen elements, each duplicated.
#[inline(always)]
unsafe fn lower(halves: __m512h) -> __m512i {
    // SAFETY: the features are available, by the callers.
    unsafe {
        let words = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(_mm512_castph_si512(halves)));
        _mm512_or_si512(words, _mm512_slli_epi32::<16>(words))
    }
}

/// The last sixteen elements, each duplicated.
#[inline(always)]
unsafe fn upper(halves: __m512h) -> __m512i {
    // SAFETY: the features are available, by the callers.
    unsafe {
        let halves = _mm512_castph_si512(halves);
        lower(_mm512_castsi512_ph(_mm512_castsi256_si512(_mm512_extracti64x4_epi64::<1>(halves))))
    }
}

/// The negated elements.
#[inline(always)]
unsafe fn negative(halves: __m512h) -> __m512h {
    // SAFETY: the features are available, by the callers.
    unsafe {
        let sign = _mm512_set1_epi16(i16::MIN);
        _mm512_castsi512_ph(_mm512_xor_si512(_mm512_castph_si512(halves), sign))
    }
}
