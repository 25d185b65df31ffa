//! Prepares AMX operands with AVX-512: scaled bf16 weights, and activations rounded to or split into bf16
//! parts.

use std::arch::asm;
use std::arch::x86_64::*;

use half::f16;

use super::tile_operands::ACTIVATIONS_BY;

/// Implements [`super::SimdIsa::store_bf16_pairs`].
///
/// # Safety
/// AVX-512 BF16 must be available, with room for 32 values at `p`.
#[inline(always)]
pub(super) unsafe fn store_bf16_pairs(p: *mut u16, a: __m512, b: __m512) {
    // Order of each four columns: 0, 2, 1, 3.
    const ORDER: i64 = 0x0706_0302_0504_0100;
    // SAFETY: the features are available and `p` is valid, by the caller.
    unsafe {
        let by = _mm512_set1_ps(ACTIVATIONS_BY);
        let rounded: __m512i =
            std::mem::transmute(_mm512_cvtne2ps_pbh(_mm512_mul_ps(b, by), _mm512_mul_ps(a, by)));
        let order = _mm512_broadcast_i32x4(_mm_set_epi64x(ORDER + 0x0808_0808_0808_0808, ORDER));
        _mm512_storeu_si512(p.cast(), _mm512_shuffle_epi8(rounded, order));
    }
}

/// Half floats times a scale, with a min added if there is one, as bf16 of 2^-112 times the numbers. Sign,
/// exponent and seven bits of ten of the mantissa stay, rounded to nearest (up in a tie, which carries into
/// the exponent as it should).
#[inline(always)]
unsafe fn scaled(values: __m512h, scale: __m512i, min: Option<__m512i>) -> __m512i {
    // SAFETY: the features are available, by the callers.
    unsafe {
        let scale = _mm512_castsi512_ph(scale);
        let weights = match min {
            Some(min) => _mm512_fmadd_ph(values, scale, _mm512_castsi512_ph(min)),
            None => _mm512_mul_ph(values, scale),
        };
        // (x 2^12 + 2^14) >> 15 = (x + 4) >> 3: four times the sign, of which one is kept.
        let rounded = _mm512_mulhrs_epi16(_mm512_castph_si512(weights), _mm512_set1_epi16(1 << 12));
        _mm512_and_si512(rounded, _mm512_set1_epi16(0x8FFF_u16 as i16))
    }
}

/// Implements [`super::SimdIsa::byte_pairs`].
///
/// # Safety
/// AVX-512 FP16 must be available.
#[inline(always)]
pub(super) unsafe fn byte_pairs(codes: __m512i, scale: __m512i, min: Option<__m512i>) -> [__m512i; 2] {
    /// 1024 as an f16: from there on the last mantissa bit has the value one.
    const WHOLE: u16 = 0x6400;
    const A_256TH: i16 = f16::from_f32_const(1.0 / 256.0).to_bits() as i16;
    // SAFETY: the features are available.
    unsafe {
        let upper = _mm512_set1_epi16(0xFF00_u16 as i16);
        // (codes & 0xFF) | whole: 1024 + 128 + the value.
        let whole = |x: u16| _mm512_set1_epi16((WHOLE + x) as i16);
        let even = _mm512_castsi512_ph(_mm512_ternarylogic_epi32::<0xF2>(whole(0), upper, codes));
        let even = _mm512_sub_ph(even, _mm512_castsi512_ph(whole(128)));
        // (codes ^ 0x80) & 0xFF00: 256 times the value.
        let odd = _mm512_cvtepi16_ph(_mm512_ternarylogic_epi32::<0x28>(codes, _mm512_set1_epi8(-128), upper));
        let a_256th = _mm512_castsi512_ph(_mm512_set1_epi16(A_256TH));
        let scale_of_odd = _mm512_castph_si512(_mm512_mul_ph(_mm512_castsi512_ph(scale), a_256th));
        [scaled(even, scale, min), scaled(odd, scale_of_odd, min)]
    }
}

/// The upper bytes of the f16 values -8 to 7 (their lower bytes are zero), four times.
static FROM_EIGHT: [u8; 64] = {
    let mut bytes = [0; 64];
    let mut i = 0;
    while i < 64 {
        bytes[i] = (f16::from_f32_const((i % 16) as f32 - 8.0).to_bits() >> 8) as u8;
        i += 1;
    }
    bytes
};

/// min + 8 × scale, for codes without an offset: the look-up table yields value − 8.
#[inline(always)]
unsafe fn plus_eight(scale: __m512i, min: __m512i) -> __m512i {
    const EIGHT: i16 = f16::from_f32_const(8.0).to_bits() as i16;
    // SAFETY: the features are available, by the caller.
    unsafe {
        let eight = _mm512_castsi512_ph(_mm512_set1_epi16(EIGHT));
        _mm512_castph_si512(_mm512_fmadd_ph(_mm512_castsi512_ph(scale), eight, _mm512_castsi512_ph(min)))
    }
}

/// Implements [`super::SimdIsa::nibble_pairs`].
///
/// # Safety
/// AVX-512 VBMI and FP16 must be available.
#[inline(always)]
pub(super) unsafe fn nibble_pairs(
    codes: __m512i,
    scale: __m512i,
    mut min: Option<__m512i>,
) -> [[__m512i; 2]; 2] {
    // SAFETY: the features are available; the table is a whole vector.
    unsafe {
        let table = _mm512_loadu_si512(FROM_EIGHT.as_ptr().cast());
        if let Some(min) = &mut min {
            *min = plus_eight(scale, *min);
        }
        let mut upper: __mmask64 = 0xAAAA_AAAA_AAAA_AAAA;
        // The compiler would turn a constant mask into an extra instruction.
        asm!("/* {0} */", inout(reg) upper, options(pure, nomem, nostack, preserves_flags));
        // The low six bits of each index byte select: a nibble and two bits that do not matter, since the table repeats four times.
        // A 16-bit look-up would take two micro-operations.
        let mut pairs = [
            [_mm512_slli_epi16::<8>(codes), codes],
            [_mm512_slli_epi16::<4>(codes), _mm512_srli_epi16::<4>(codes)],
        ];
        for words in pairs.as_flattened_mut() {
            let values = _mm512_maskz_permutexvar_epi8(upper, *words, table);
            *words = scaled(_mm512_castsi512_ph(values), scale, min);
        }
        pairs
    }
}

/// Implements [`super::SimdIsa::store_bf16`].
///
/// # Safety
/// AVX-512 BF16 must be available, with room for sixteen values at `p`.
#[inline(always)]
pub(super) unsafe fn store_bf16(p: *mut u16, x: __m512) {
    // SAFETY: the features are available and `p` is valid, by the caller.
    unsafe { _mm256_storeu_si256(p.cast(), std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x))) };
}

/// Implements [`super::SimdIsa::store_split`].
///
/// # Safety
/// AVX-512 BF16 must be available, with room for sixteen values at `high` and at `low`.
#[inline(always)]
pub(super) unsafe fn store_split(high: *mut u16, low: *mut u16, x: __m512) {
    // SAFETY: the features are available and the pointers valid, by the caller.
    unsafe {
        let upper: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(x));
        _mm256_storeu_si256(high.cast(), upper);
        let upper = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(upper));
        store_bf16(low, _mm512_sub_ps(x, _mm512_castsi512_ps(upper)));
    }
}
