//! AVX-512, with and without AMX: a vector is one 512-bit register.

use std::arch::x86_64::*;

use super::avx512_pair_tile::pair_tile;
use super::frame::align_frame;
use super::{AmxIsa, AmxKernel, Kernel, KeyRun, PairBlock, ProductRun, SimdIsa, ValueRun};
use super::{amx, amx_operands, amx_scales};
use crate::layout::ScaleKind;

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// # Safety
/// The machine must support the ISA, and the kernel's own conditions must hold.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    align_frame();
    // SAFETY: guaranteed by the caller.
    unsafe { kernel.run::<Avx512>() }
}

/// # Safety
/// The machine must support the ISA and AMX, and the kernel's own conditions must hold.
#[target_feature(
    enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx512bf16,avx512fp16"
)]
pub(super) unsafe fn run_amx<K: AmxKernel>(kernel: K) -> K::Output {
    align_frame();
    // SAFETY: guaranteed by the caller.
    unsafe { kernel.run::<Avx512>() }
}

macro_rules! isa_impl {
    ($($name:ident($($arg:ident: $t:ty),*) $(-> $out:ty)? = $e:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $t),*) $(-> $out)? {
            // SAFETY: the features are available and pointers are valid for a whole vector, by the contract of `SimdIsa`.
            unsafe { $e }
        }
    )*};
}

impl SimdIsa for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;

    const WIDE_IS_SIGNED: bool = false;
    const HAS_PAIR_TILE: bool = true;
    const REGISTERS: usize = 32;

    isa_impl! {
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        load(p: *const f32) -> __m512 = _mm512_loadu_ps(p);
        store(p: *mut f32, x: __m512) = _mm512_storeu_ps(p, x);
        load_f16(p: *const u16) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        load_bf16(p: *const u16) -> __m512 = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))));
        load_e4m3(p: *const u8) -> __m512 = _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast()))), _mm256_set1_epi16(0xBF80_u16 as i16)));
        store_f16(p: *mut u16, x: __m512) = _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<0>(x));
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        largest(a: __m512) -> f32 = _mm512_reduce_max_ps(a);
        smallest(a: __m512) -> f32 = _mm512_reduce_min_ps(a);
        ilargest(a: __m512i) -> i32 = _mm512_reduce_max_epi32(a);
        isum(a: __m512i) -> i32 = _mm512_reduce_add_epi32(a);
        max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        isplat(x: i32) -> __m512i = _mm512_set1_epi32(x);
        iload(p: *const i32) -> __m512i = _mm512_loadu_si512(p.cast());
        istore(p: *mut i32, x: __m512i) = _mm512_storeu_si512(p.cast(), x);
        iload_i8(p: *const i8) -> __m512i = _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()));
        iload_u8(p: *const u8) -> __m512i = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
        istore_i8(p: *mut i8, x: __m512i) = _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(x));
        iadd(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        isub(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi32(a, b);
        imax(a: __m512i, b: __m512i) -> __m512i = _mm512_max_epi32(a, b);
        iand(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        float(a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
        bits(a: __m512) -> __m512i = _mm512_castps_si512(a);
        from_bits(a: __m512i) -> __m512 = _mm512_castsi512_ps(a);
        bsplat(x: u8) -> __m512i = _mm512_set1_epi8(x as i8);
        bload(p: *const u8) -> __m512i = _mm512_loadu_si512(p.cast());
        bstore(p: *mut u8, x: __m512i) = _mm512_storeu_si512(p.cast(), x);
        band(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        bor(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        badd(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi8(a, b);
        blookup(table: &[u8; 16], x: __m512i) -> __m512i = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), x);
        dot16_wide(acc: __m512i, codes: &[__m512i; 4], x: *const i8) -> __m512i = Self::dot16(acc, codes, x);
        dot_pairs(acc: __m512i, a: __m512i, b: __m512i) -> __m512i = _mm512_dpwssd_epi32(acc, a, b);
        prefetch(p: *const u8) = _mm_prefetch::<_MM_HINT_T1>(p.cast());
        prefetch_l1(p: *const u8) = _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }

    #[inline(always)]
    unsafe fn pair_tile<const VECTORS: usize, const PAIRS: usize, const SUMS: usize, const MIN: bool>(
        block: PairBlock,
    ) {
        // SAFETY: the features are available, and memory is valid, by the contract of `SimdIsa`.
        unsafe { pair_tile::<VECTORS, PAIRS, SUMS, MIN>(block) }
    }
    #[inline(always)]
    unsafe fn ishl<const N: u32>(a: __m512i) -> __m512i {
        // SAFETY: the features are available.
        unsafe { _mm512_slli_epi32::<N>(a) }
    }
    #[inline(always)]
    unsafe fn ishr<const N: u32>(a: __m512i) -> __m512i {
        // SAFETY: the features are available.
        unsafe { _mm512_srli_epi32::<N>(a) }
    }
    #[inline(always)]
    unsafe fn bshr<const N: u32>(a: __m512i) -> __m512i {
        // SAFETY: the features are available.
        unsafe { _mm512_srli_epi16::<N>(a) }
    }
    #[inline(always)]
    unsafe fn bshl<const N: u32>(a: __m512i) -> __m512i {
        // SAFETY: the features are available.
        unsafe { _mm512_slli_epi16::<N>(a) }
    }
    #[inline(always)]
    unsafe fn dot16(acc: __m512i, codes: &[__m512i; 4], x: *const i8) -> __m512i {
        let mut acc = acc;
        for (v, codes) in codes.iter().enumerate() {
            // SAFETY: sixteen values at `x` by contract.
            unsafe {
                let x = _mm512_set1_epi32(x.cast::<i32>().add(v).read_unaligned());
                acc = _mm512_dpbusd_epi32(acc, *codes, x);
            }
        }
        acc
    }
}

impl AmxIsa for Avx512 {
    #[inline(always)]
    unsafe fn store_bf16_pairs(p: *mut u16, a: __m512, b: __m512) {
        // SAFETY: an ISA with tiles has the features, and `p` has room for 32, by the contract of `AmxIsa`.
        unsafe { amx_operands::store_bf16_pairs(p, a, b) }
    }
    #[inline(always)]
    unsafe fn pair_scales(
        kind: ScaleKind,
        supers: *const u8,
        scales: *const u8,
        power: u16,
    ) -> [[__m512i; 2]; 2] {
        // SAFETY: an ISA with tiles has the features; the scales are in the panel, by the contract of `AmxIsa`.
        unsafe { amx_scales::pair_scales(kind, supers, scales, power) }
    }
    #[inline(always)]
    unsafe fn byte_pairs(has_min: bool, codes: __m512i, [scale, min]: [__m512i; 2]) -> [__m512i; 2] {
        // SAFETY: an ISA with tiles has the features; no memory is touched.
        unsafe { amx_operands::byte_pairs(codes, scale, has_min.then_some(min)) }
    }
    #[inline(always)]
    unsafe fn nibble_pairs(has_min: bool, codes: __m512i, [scale, min]: [__m512i; 2]) -> [[__m512i; 2]; 2] {
        // SAFETY: an ISA with tiles has the features; no memory is touched.
        unsafe { amx_operands::nibble_pairs(codes, scale, has_min.then_some(min)) }
    }
    #[inline(always)]
    unsafe fn add_products<const G: usize, const P: usize, const X: usize, const W: usize>(run: &ProductRun) {
        // SAFETY: the tiles are configured, and the run's memory is valid, by the contract of `AmxIsa`.
        unsafe { amx::add_products::<G, P, X, W>(run) }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, x: __m512) {
        // SAFETY: an ISA with tiles has the features, and `p` has room for sixteen, by the contract of `AmxIsa`.
        unsafe { amx_operands::store_bf16(p, x) }
    }
    #[inline(always)]
    unsafe fn store_split(high: *mut u16, low: *mut u16, x: __m512) {
        // SAFETY: an ISA with tiles has the features, and both have room for sixteen, by the contract of `AmxIsa`.
        unsafe { amx_operands::store_split(high, low, x) }
    }
    #[inline(always)]
    unsafe fn key_dots<const G: usize, const P: usize>(run: &KeyRun) {
        // SAFETY: the tiles are configured, by the contract of `AmxIsa`; the run's memory is valid by its own.
        unsafe { amx::key_dots::<G, P>(run) }
    }
    #[inline(always)]
    unsafe fn value_dots<const G: usize>(run: &ValueRun) {
        // SAFETY: the tiles are configured, by the contract of `AmxIsa`; the run's memory is valid by its own.
        unsafe { amx::value_dots::<G>(run) }
    }
}
