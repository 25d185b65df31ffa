//! AVX2, with and without AVX-VNNI: a vector is two 256-bit registers, rows 0..8 and 8..16.

use std::arch::x86_64::*;

use super::frame::align_frame;
use super::{Kernel, SimdIsa};

#[derive(Clone, Copy)]
pub(crate) struct Avx2<const VNNI: bool>;

/// # Safety
/// The machine must support the ISA, and the kernel's own conditions must hold.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    align_frame();
    // SAFETY: guaranteed by the caller.
    unsafe { kernel.run::<Avx2<false>>() }
}

/// # Safety
/// The machine must support the ISA, and the kernel's own conditions must hold.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(super) unsafe fn run_vnni<K: Kernel>(kernel: K) -> K::Output {
    align_frame();
    // SAFETY: guaranteed by the caller.
    unsafe { kernel.run::<Avx2<true>>() }
}

/// Applies one expression to both halves.
macro_rules! halves {
    ($($name:ident($($arg:ident: $t:ty),*) -> $out:ty = $e:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: [$t; 2]),*) -> [$out; 2] {
            // SAFETY: the features are available, by the contract of `SimdIsa`.
            unsafe {
                [{ $(let $arg = $arg[0];)* $e }, { $(let $arg = $arg[1];)* $e }]
            }
        }
    )*};
}

/// Applies one expression to both halves and their pointers.
macro_rules! memory {
    ($($name:ident($p:ident: $pt:ty $(, $x:ident: $t:ty)?) $(-> $out:ty)? = $step:literal, $e:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($p: $pt $(, $x: [$t; 2])?) $(-> [$out; 2])? {
            // SAFETY: the features are available and the pointer is valid for a whole vector, by the contract of `SimdIsa`.
            unsafe {
                memory!(@ $p $step $(, $x)?; $($out)?; $e)
            }
        }
    )*};
    (@ $p:ident $step:literal; $out:ty; $e:expr) => {
        [$e, { let $p = $p.add($step); $e }]
    };
    (@ $p:ident $step:literal, $x:ident; ; $e:expr) => {{
        { let $x = $x[0]; $e; }
        let ($p, $x) = ($p.add($step), $x[1]);
        $e;
    }};
}

impl<const VNNI: bool> SimdIsa for Avx2<VNNI> {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type B = [__m256i; 2];

    const WIDE_IS_SIGNED: bool = !VNNI;
    const WIDE_IS_SLOW: bool = !VNNI;

    memory! {
        load(p: *const f32) -> __m256 = 8, _mm256_loadu_ps(p);
        store(p: *mut f32, x: __m256) = 8, _mm256_storeu_ps(p, x);
        load_f16(p: *const u16) -> __m256 = 8, _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
        load_bf16(p: *const u16) -> __m256 = 8, _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))));
        load_e4m3(p: *const u8) -> __m256 = 8, _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16::<7>(_mm_cvtepi8_epi16(_mm_loadl_epi64(p.cast()))), _mm_set1_epi16(0xBF80_u16 as i16)));
        store_f16(p: *mut u16, x: __m256) = 8, _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<0>(x));
        iload(p: *const i32) -> __m256i = 8, _mm256_loadu_si256(p.cast());
        istore(p: *mut i32, x: __m256i) = 8, _mm256_storeu_si256(p.cast(), x);
        iload_i8(p: *const i8) -> __m256i = 8, _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()));
        iload_u8(p: *const u8) -> __m256i = 8, _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
        bload(p: *const u8) -> __m256i = 32, _mm256_loadu_si256(p.cast());
        bstore(p: *mut u8, x: __m256i) = 32, _mm256_storeu_si256(p.cast(), x);
    }

    halves! {
        add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
        fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        min(a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b);
        iadd(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
        isub(a: __m256i, b: __m256i) -> __m256i = _mm256_sub_epi32(a, b);
        imax(a: __m256i, b: __m256i) -> __m256i = _mm256_max_epi32(a, b);
        iand(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
        dot_pairs(acc: __m256i, a: __m256i, b: __m256i) -> __m256i = if VNNI {
            _mm256_dpwssd_avx_epi32(acc, a, b)
        } else {
            _mm256_add_epi32(acc, _mm256_madd_epi16(a, b))
        };
        float(a: __m256i) -> __m256 = _mm256_cvtepi32_ps(a);
        bits(a: __m256) -> __m256i = _mm256_castps_si256(a);
        from_bits(a: __m256i) -> __m256 = _mm256_castsi256_ps(a);
        band(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
        bor(a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
        badd(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi8(a, b);
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        // SAFETY: the features are available.
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn isplat(x: i32) -> Self::I {
        // SAFETY: the features are available.
        unsafe { [_mm256_set1_epi32(x); 2] }
    }
    #[inline(always)]
    unsafe fn bsplat(x: u8) -> Self::B {
        // SAFETY: the features are available.
        unsafe { [_mm256_set1_epi8(x as i8); 2] }
    }
    #[inline(always)]
    unsafe fn istore_i8(p: *mut i8, x: Self::I) {
        // SAFETY: the features are available and `p` is valid for sixteen bytes. Saturating packs keep values that fit i8.
        unsafe {
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(x[0], x[1]));
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(p.cast(), bytes);
        }
    }
    #[inline(always)]
    unsafe fn ishl<const N: u32>(a: Self::I) -> Self::I {
        // SAFETY: the features are available.
        unsafe { a.map(|a| _mm256_sll_epi32(a, _mm_cvtsi32_si128(N as i32))) }
    }
    #[inline(always)]
    unsafe fn ishr<const N: u32>(a: Self::I) -> Self::I {
        // SAFETY: the features are available.
        unsafe { a.map(|a| _mm256_srl_epi32(a, _mm_cvtsi32_si128(N as i32))) }
    }
    #[inline(always)]
    unsafe fn bshr<const N: u32>(a: Self::B) -> Self::B {
        // SAFETY: the features are available.
        unsafe { a.map(|a| _mm256_srl_epi16(a, _mm_cvtsi32_si128(N as i32))) }
    }
    #[inline(always)]
    unsafe fn bshl<const N: u32>(a: Self::B) -> Self::B {
        // SAFETY: the features are available.
        unsafe { a.map(|a| _mm256_sll_epi16(a, _mm_cvtsi32_si128(N as i32))) }
    }
    #[inline(always)]
    unsafe fn blookup(table: &[u8; 16], x: Self::B) -> Self::B {
        // SAFETY: the features are available; the table is sixteen bytes.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, x[0]), _mm256_shuffle_epi8(table, x[1])]
        }
    }

    #[inline(always)]
    unsafe fn dot16(acc: Self::I, codes: &[Self::B; 4], x: *const i8) -> Self::I {
        // SAFETY: sixteen values at `x`; the features are available.
        unsafe {
            let x: [__m256i; 4] =
                std::array::from_fn(|v| _mm256_set1_epi32(x.cast::<i32>().add(v).read_unaligned()));
            let half = |h: usize| {
                if VNNI {
                    return (0..4).fold(acc[h], |acc, v| _mm256_dpbusd_avx_epi32(acc, codes[v][h], x[v]));
                }
                // Codes below 64: two products fit twice in i16 (2 · 2 · 63 · 127 = 32,004).
                let pair = |v: usize| {
                    let a = _mm256_maddubs_epi16(codes[v][h], x[v]);
                    let b = _mm256_maddubs_epi16(codes[v + 1][h], x[v + 1]);
                    _mm256_madd_epi16(_mm256_add_epi16(a, b), _mm256_set1_epi16(1))
                };
                _mm256_add_epi32(acc[h], _mm256_add_epi32(pair(0), pair(2)))
            };
            [half(0), half(1)]
        }
    }

    #[inline(always)]
    unsafe fn dot16_wide(acc: Self::I, codes: &[Self::B; 4], x: *const i8) -> Self::I {
        // SAFETY: sixteen values at `x`; the features are available.
        unsafe {
            if VNNI {
                return Self::dot16(acc, codes, x);
            }
            // |w| · (x with w's sign): two products of at most 128 · 127 fit in i16.
            let ones = _mm256_set1_epi16(1);
            let mut acc = acc;
            for (v, codes) in codes.iter().enumerate() {
                let x = _mm256_set1_epi32(x.cast::<i32>().add(v).read_unaligned());
                for (acc, codes) in acc.iter_mut().zip(codes) {
                    let w = _mm256_xor_si256(*codes, _mm256_set1_epi8(-128));
                    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
                    *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(pairs, ones));
                }
            }
            acc
        }
    }

    #[inline(always)]
    unsafe fn largest(a: Self::F) -> f32 {
        // SAFETY: the features are available.
        unsafe {
            let a = _mm256_max_ps(a[0], a[1]);
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)))
        }
    }
    #[inline(always)]
    unsafe fn smallest(a: Self::F) -> f32 {
        // SAFETY: the features are available.
        unsafe {
            let a = _mm256_min_ps(a[0], a[1]);
            let a = _mm_min_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_min_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_min_ss(a, _mm_movehdup_ps(a)))
        }
    }
    #[inline(always)]
    unsafe fn ilargest(a: Self::I) -> i32 {
        // SAFETY: the features are available.
        unsafe {
            let a = _mm256_max_epi32(a[0], a[1]);
            let a = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let a = _mm_max_epi32(a, _mm_shuffle_epi32::<0b01_00_11_10>(a));
            _mm_cvtsi128_si32(_mm_max_epi32(a, _mm_shuffle_epi32::<0b10_11_00_01>(a)))
        }
    }
    #[inline(always)]
    unsafe fn isum(a: Self::I) -> i32 {
        // SAFETY: the features are available.
        unsafe {
            let a = _mm256_add_epi32(a[0], a[1]);
            let a = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let a = _mm_add_epi32(a, _mm_shuffle_epi32::<0b01_00_11_10>(a));
            _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32::<0b10_11_00_01>(a)))
        }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: prefetching any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}
