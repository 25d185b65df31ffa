//! What tiles meet, made in vectors: weights of bfloat16 with their scales, and the parts of what multiplies them.

use std::arch::x86_64::*;

use super::NibbleTable;
use super::tiles::ACTIVATIONS_BY;

/// See [`super::Lane::store_bfloats`].
///
/// # Safety
/// AVX-512 BF16 must be there, and room for 32 values at `p`.
#[inline(always)]
pub(super) unsafe fn store_bfloats(p: *mut u16, a: __m512, b: __m512) {
    // Of four columns: 0, 2, 1, 3.
    const ORDER: i64 = 0x0706_0302_0504_0100;
    // SAFETY: the features are there and `p` is valid, by the caller.
    unsafe {
        let by = _mm512_set1_ps(ACTIVATIONS_BY);
        let rounded: __m512i =
            std::mem::transmute(_mm512_cvtne2ps_pbh(_mm512_mul_ps(b, by), _mm512_mul_ps(a, by)));
        let order = _mm512_broadcast_i32x4(_mm_set_epi64x(ORDER + 0x0808_0808_0808_0808, ORDER));
        _mm512_storeu_si512(p.cast(), _mm512_shuffle_epi8(rounded, order));
    }
}

/// See [`super::Lane::halves`].
///
/// # Safety
/// AVX-512 must be there.
#[inline(always)]
pub(super) unsafe fn halves(x: __m512) -> __m512i {
    // SAFETY: the features are there.
    unsafe {
        let words = _mm512_cvtepu16_epi32(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
        _mm512_or_si512(words, _mm512_slli_epi32::<16>(words))
    }
}

/// Half floats times a scale, with a min added where there is one, to bfloat16 of 2^-112 of them. Sign, exponent and
/// seven bits of ten of the mantissa stay, rounded to nearest (up in a tie, which carries into the exponent as it should).
#[inline(always)]
unsafe fn scaled<const MIN: bool>(values: __m512h, scale: __m512i, min: __m512i) -> __m512i {
    // SAFETY: the features are there, by the callers.
    unsafe {
        let scale = _mm512_castsi512_ph(scale);
        let weights = if MIN {
            _mm512_fmadd_ph(values, scale, _mm512_castsi512_ph(min))
        } else {
            _mm512_mul_ph(values, scale)
        };
        // (x 2^12 + 2^14) >> 15 = (x + 4) >> 3: four times the sign, of which one is kept.
        let rounded = _mm512_mulhrs_epi16(_mm512_castph_si512(weights), _mm512_set1_epi16(1 << 12));
        _mm512_and_si512(rounded, _mm512_set1_epi16(0x8FFF_u16 as i16))
    }
}

/// See [`super::Lane::wide_pairs`].
///
/// # Safety
/// AVX-512 FP16 must be there.
#[inline(always)]
pub(super) unsafe fn wide_pairs(codes: __m512i, scale: __m512i) -> [__m512i; 2] {
    // SAFETY: the features are there.
    unsafe {
        let values = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
        // Words of 256 times the value.
        let even = _mm512_slli_epi16::<8>(values);
        let odd = _mm512_and_si512(values, _mm512_set1_epi16(0xFF00_u16 as i16));
        let scaled = |words| scaled::<false>(_mm512_cvtepi16_ph(words), scale, scale);
        [scaled(even), scaled(odd)]
    }
}

/// See [`super::Lane::small_pairs`].
///
/// # Safety
/// AVX-512 FP16 must be there.
#[inline(always)]
pub(super) unsafe fn small_pairs<const MIN: bool>(
    codes: __m512i,
    zero: u8,
    scale: __m512i,
    min: __m512i,
) -> [__m512i; 2] {
    /// 1024 as a half float: the whole numbers from there on have their lowest bit in the last.
    const WHOLE: u16 = 0x6400;
    // SAFETY: the features are there.
    unsafe {
        let whole = _mm512_set1_epi16(WHOLE as i16);
        // codes & 0xFF | whole
        let even = _mm512_ternarylogic_epi32::<0xEA>(codes, _mm512_set1_epi16(0xFF), whole);
        let odd = _mm512_or_si512(_mm512_srli_epi16::<8>(codes), whole);
        let zero = _mm512_castsi512_ph(_mm512_set1_epi16((WHOLE + u16::from(zero)) as i16));
        let scaled = |words| scaled::<MIN>(_mm512_sub_ph(_mm512_castsi512_ph(words), zero), scale, min);
        [scaled(even), scaled(odd)]
    }
}

/// See [`super::Lane::nibble_pairs`].
///
/// # Safety
/// AVX-512 FP16 must be there.
#[inline(always)]
pub(super) unsafe fn nibble_pairs<const MIN: bool>(
    codes: __m512i,
    table: &NibbleTable,
    scale: __m512i,
    min: __m512i,
) -> [[__m512i; 2]; 2] {
    // SAFETY: the features are there; the table is a whole vector.
    unsafe {
        let table = _mm512_loadu_si512(table.0.as_ptr().cast());
        // The lowest five bits of a word choose one of 32, of which the upper half repeats the lower.
        let pick = |words| {
            let values = _mm512_castsi512_ph(_mm512_permutexvar_epi16(words, table));
            scaled::<MIN>(values, scale, min)
        };
        let low = [pick(codes), pick(_mm512_srli_epi16::<8>(codes))];
        let high = [pick(_mm512_srli_epi16::<4>(codes)), pick(_mm512_srli_epi16::<12>(codes))];
        [low, high]
    }
}

/// See [`super::Lane::store_bf16`].
///
/// # Safety
/// AVX-512 BF16 must be there, and room for sixteen values at `p`.
#[inline(always)]
pub(super) unsafe fn store_bf16(p: *mut u16, x: __m512) {
    // SAFETY: the features are there and `p` is valid, by the caller.
    unsafe { _mm256_storeu_si256(p.cast(), std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x))) };
}

/// See [`super::Lane::store_split`].
///
/// # Safety
/// AVX-512 BF16 must be there, and room for sixteen values at `high` and at `low`.
#[inline(always)]
pub(super) unsafe fn store_split(high: *mut u16, low: *mut u16, x: __m512) {
    // SAFETY: the features are there and the pointers valid, by the caller.
    unsafe {
        let upper: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(x));
        _mm256_storeu_si256(high.cast(), upper);
        let upper = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(upper));
        store_bf16(low, _mm512_sub_ps(x, _mm512_castsi512_ps(upper)));
    }
}
