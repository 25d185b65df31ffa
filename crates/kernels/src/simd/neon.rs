//! NEON, with and without int8 dot products: a vector is four 128-bit registers, rows 0..4 in the first.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{Kernel, SimdIsa};

#[derive(Clone, Copy)]
pub(crate) struct Neon<const DOTPROD: bool>;

/// # Safety
/// The machine must support the ISA, and the kernel's own conditions must hold.
#[target_feature(enable = "neon")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: guaranteed by the caller.
    unsafe { kernel.run::<Neon<false>>() }
}

/// # Safety
/// The machine must support the ISA, and the kernel's own conditions must hold.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn run_dotprod<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: guaranteed by the caller.
    unsafe { kernel.run::<Neon<true>>() }
}

/// Applies one expression to all quarters.
macro_rules! quarters {
    ($($name:ident($($arg:ident: $t:ty),*) -> $out:ty = $e:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: [$t; 4]),*) -> [$out; 4] {
            // SAFETY: the features are available, by the contract of `SimdIsa`.
            unsafe { quarters!(@ [$($arg)*] $e; 0 1 2 3) }
        }
    )*};
    (@ $i:literal [$($arg:ident)*] $e:expr) => {{ $(let $arg = $arg[$i];)* $e }};
    (@ $args:tt $e:expr; $($i:literal)*) => { [$(quarters!(@ $i $args $e)),*] };
}

/// Applies one expression to all quarters and their pointers.
macro_rules! memory {
    ($($name:ident($p:ident: $pt:ty $(, $x:ident: $t:ty)?) $(-> $out:ty)? = $step:literal, $e:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($p: $pt $(, $x: [$t; 4])?) $(-> [$out; 4])? {
            // SAFETY: the features are available and the pointer is valid for a whole vector, by the contract of `SimdIsa`.
            unsafe { memory!(@ $p $step $(, $x)?; $($out)?; $e; 0 1 2 3) }
        }
    )*};
    (@ $p:ident $step:literal; $out:ty; $e:expr; $($i:literal)*) => {
        [$({ let $p = $p.add($i * $step); $e }),*]
    };
    (@ $p:ident $step:literal, $x:ident; ; $e:expr; $($i:literal)*) => {{
        $({ let ($p, $x) = ($p.add($i * $step), $x[$i]); $e; })*
    }};
}

/// Adds to each of four rows the dot of its bytes in `codes` with number `V` of the four times four bytes in
/// `x`.
///
/// # Safety
/// The machine must have dot products of bytes.
#[inline(always)]
unsafe fn sdot<const V: usize>(acc: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    let mut acc = acc;
    // SAFETY: the instruction is there, by the caller; it reads and writes the named registers only. The intrinsic is
    // not stable yet.
    unsafe {
        asm!(
            "sdot {acc:v}.4s, {codes:v}.16b, {x:v}.4b[{v}]",
            acc = inout(vreg) acc,
            codes = in(vreg) codes,
            x = in(vreg) x,
            v = const V,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// Adds to each of four rows the dot of its sixteen bytes with `x`, four columns in each vector of codes. `N`
/// products, a divisor of four, are added up in an i16 each time.
///
/// # Safety
/// The machine must have NEON.
#[inline(always)]
unsafe fn widening_dot<const N: usize>(
    acc: int32x4_t,
    codes: [int8x16_t; 4],
    x: [int8x16_t; 4],
) -> int32x4_t {
    // SAFETY: the features are available, by the caller.
    unsafe {
        let mut sums = [vdupq_n_s32(0); 2];
        for first in (0..4).step_by(N) {
            let mut low = vmull_s8(vget_low_s8(codes[first]), vget_low_s8(x[first]));
            let mut high = vmull_high_s8(codes[first], x[first]);
            for v in first + 1..first + N {
                low = vmlal_s8(low, vget_low_s8(codes[v]), vget_low_s8(x[v]));
                high = vmlal_high_s8(high, codes[v], x[v]);
            }
            sums = [vpadalq_s16(sums[0], low), vpadalq_s16(sums[1], high)];
        }
        vaddq_s32(acc, vpaddq_s32(sums[0], sums[1]))
    }
}

/// The dots of all rows with sixteen bytes at `x`; see [`widening_dot`] for `N`.
///
/// # Safety
/// The ISA's features must be available, and sixteen bytes at `x`.
#[inline(always)]
unsafe fn dot<const DOTPROD: bool, const N: usize>(
    acc: [int32x4_t; 4],
    codes: [[int8x16_t; 4]; 4],
    x: *const i8,
) -> [int32x4_t; 4] {
    let mut acc = acc;
    // SAFETY: by the caller.
    unsafe {
        let x = vld1q_s8(x);
        if DOTPROD {
            for q in 0..4 {
                acc[q] = sdot::<0>(acc[q], codes[0][q], x);
                acc[q] = sdot::<1>(acc[q], codes[1][q], x);
                acc[q] = sdot::<2>(acc[q], codes[2][q], x);
                acc[q] = sdot::<3>(acc[q], codes[3][q], x);
            }
            return acc;
        }
        let x = vreinterpretq_s32_s8(x);
        let x = [
            vdupq_laneq_s32::<0>(x),
            vdupq_laneq_s32::<1>(x),
            vdupq_laneq_s32::<2>(x),
            vdupq_laneq_s32::<3>(x),
        ];
        let x = x.map(|x| vreinterpretq_s8_s32(x));
        for q in 0..4 {
            acc[q] = widening_dot::<N>(acc[q], codes.map(|codes| codes[q]), x);
        }
        acc
    }
}

impl<const DOTPROD: bool> SimdIsa for Neon<DOTPROD> {
    type F = [float32x4_t; 4];
    type I = [int32x4_t; 4];
    type B = [uint8x16_t; 4];

    const WIDE_IS_SIGNED: bool = true;

    memory! {
        load(p: *const f32) -> float32x4_t = 4, vld1q_f32(p);
        store(p: *mut f32, x: float32x4_t) = 4, vst1q_f32(p, x);
        load_f16(p: *const u16) -> float32x4_t = 4, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
        load_bf16(p: *const u16) -> float32x4_t = 4, vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p)));
        store_f16(p: *mut u16, x: float32x4_t) = 4, vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
        iload(p: *const i32) -> int32x4_t = 4, vld1q_s32(p);
        istore(p: *mut i32, x: int32x4_t) = 4, vst1q_s32(p, x);
        bload(p: *const u8) -> uint8x16_t = 16, vld1q_u8(p);
        bstore(p: *mut u8, x: uint8x16_t) = 16, vst1q_u8(p, x);
    }

    quarters! {
        add(a: float32x4_t, b: float32x4_t) -> float32x4_t = vaddq_f32(a, b);
        sub(a: float32x4_t, b: float32x4_t) -> float32x4_t = vsubq_f32(a, b);
        mul(a: float32x4_t, b: float32x4_t) -> float32x4_t = vmulq_f32(a, b);
        div(a: float32x4_t, b: float32x4_t) -> float32x4_t = vdivq_f32(a, b);
        fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t = vfmaq_f32(c, a, b);
        // By comparison: the machine's own maximum returns NaN where either operand is NaN.
        max(a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(vcgtq_f32(a, b), a, b);
        min(a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(vcltq_f32(a, b), a, b);
        iadd(a: int32x4_t, b: int32x4_t) -> int32x4_t = vaddq_s32(a, b);
        isub(a: int32x4_t, b: int32x4_t) -> int32x4_t = vsubq_s32(a, b);
        imax(a: int32x4_t, b: int32x4_t) -> int32x4_t = vmaxq_s32(a, b);
        iand(a: int32x4_t, b: int32x4_t) -> int32x4_t = vandq_s32(a, b);
        dot_pairs(acc: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t = {
            let low = vmlal_s16(acc, vmovn_s32(a), vmovn_s32(b));
            vmlal_s16(low, vshrn_n_s32::<16>(a), vshrn_n_s32::<16>(b))
        };
        float(a: int32x4_t) -> float32x4_t = vcvtq_f32_s32(a);
        bits(a: float32x4_t) -> int32x4_t = vreinterpretq_s32_f32(a);
        from_bits(a: int32x4_t) -> float32x4_t = vreinterpretq_f32_s32(a);
        band(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t = vandq_u8(a, b);
        bor(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t = vorrq_u8(a, b);
        badd(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t = vaddq_u8(a, b);
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        // SAFETY: the features are available.
        unsafe { [vdupq_n_f32(x); 4] }
    }
    #[inline(always)]
    unsafe fn isplat(x: i32) -> Self::I {
        // SAFETY: the features are available.
        unsafe { [vdupq_n_s32(x); 4] }
    }
    #[inline(always)]
    unsafe fn bsplat(x: u8) -> Self::B {
        // SAFETY: the features are available.
        unsafe { [vdupq_n_u8(x); 4] }
    }
    #[inline(always)]
    unsafe fn iload_i8(p: *const i8) -> Self::I {
        // SAFETY: the features are available and `p` is valid for sixteen bytes.
        unsafe {
            let bytes = vld1q_s8(p);
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            let quarter = |words| [vmovl_s16(vget_low_s16(words)), vmovl_high_s16(words)];
            let ([a, b], [c, d]) = (quarter(low), quarter(high));
            [a, b, c, d]
        }
    }
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> Self::F {
        // SAFETY: the features are available and `p` is valid for sixteen bytes.
        unsafe {
            let bytes = vld1q_s8(p.cast());
            let halves = [vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes)];
            let [low, high] = halves.map(|code| {
                let bits = vandq_u16(vreinterpretq_u16_s16(vshlq_n_s16::<7>(code)), vdupq_n_u16(0xBF80));
                [vget_low_u16(bits), vget_high_u16(bits)].map(|bits| vcvt_f32_f16(vreinterpret_f16_u16(bits)))
            });
            [low[0], low[1], high[0], high[1]]
        }
    }
    #[inline(always)]
    unsafe fn iload_u8(p: *const u8) -> Self::I {
        // SAFETY: the features are available and `p` is valid for sixteen bytes.
        unsafe {
            let bytes = vld1q_u8(p);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            let quarter = |words| [vmovl_u16(vget_low_u16(words)), vmovl_high_u16(words)];
            let ([a, b], [c, d]) = (quarter(low), quarter(high));
            [a, b, c, d].map(|x| vreinterpretq_s32_u32(x))
        }
    }
    #[inline(always)]
    unsafe fn istore_i8(p: *mut i8, x: Self::I) {
        // SAFETY: the features are available and `p` is valid for sixteen bytes.
        unsafe {
            let x = x.map(|x| vreinterpretq_s8_s32(x));
            vst1q_s8(p, vuzp1q_s8(vuzp1q_s8(x[0], x[1]), vuzp1q_s8(x[2], x[3])));
        }
    }
    #[inline(always)]
    unsafe fn ishl<const N: u32>(a: Self::I) -> Self::I {
        // SAFETY: the features are available.
        unsafe { a.map(|a| vshlq_s32(a, vdupq_n_s32(N as i32))) }
    }
    #[inline(always)]
    unsafe fn ishr<const N: u32>(a: Self::I) -> Self::I {
        // SAFETY: the features are available.
        unsafe {
            let right = vdupq_n_s32(-(N as i32));
            a.map(|a| vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), right)))
        }
    }
    #[inline(always)]
    unsafe fn bshr<const N: u32>(a: Self::B) -> Self::B {
        // SAFETY: the features are available.
        unsafe { a.map(|a| vshlq_u8(a, vdupq_n_s8(-(N as i8)))) }
    }
    #[inline(always)]
    unsafe fn bshl<const N: u32>(a: Self::B) -> Self::B {
        // SAFETY: the features are available.
        unsafe { a.map(|a| vshlq_u8(a, vdupq_n_s8(N as i8))) }
    }
    #[inline(always)]
    unsafe fn blookup(table: &[u8; 16], x: Self::B) -> Self::B {
        // SAFETY: the features are available; the table is sixteen bytes.
        unsafe {
            let table = vld1q_u8(table.as_ptr());
            x.map(|x| vqtbl1q_u8(table, x))
        }
    }

    #[inline(always)]
    unsafe fn dot16(acc: Self::I, codes: &[Self::B; 4], x: *const i8) -> Self::I {
        // Codes below 64: four products fit i16 (4 · 63 · 127 = 32,004).
        // SAFETY: sixteen values at `x`; the features are available.
        unsafe { dot::<DOTPROD, 4>(acc, codes.map(|codes| codes.map(|c| vreinterpretq_s8_u8(c))), x) }
    }
    #[inline(always)]
    unsafe fn dot16_wide(acc: Self::I, codes: &[Self::B; 4], x: *const i8) -> Self::I {
        // Less 128 each, two products fit i16 (2 · 128 · 127 = 32,512).
        // SAFETY: sixteen values at `x`; the features are available.
        unsafe {
            let signed = |c| vreinterpretq_s8_u8(veorq_u8(c, vdupq_n_u8(128)));
            dot::<DOTPROD, 2>(acc, codes.map(|codes| codes.map(signed)), x)
        }
    }

    #[inline(always)]
    unsafe fn largest(a: Self::F) -> f32 {
        // SAFETY: the features are available.
        unsafe { vmaxvq_f32(vmaxq_f32(vmaxq_f32(a[0], a[1]), vmaxq_f32(a[2], a[3]))) }
    }
    #[inline(always)]
    unsafe fn smallest(a: Self::F) -> f32 {
        // SAFETY: the features are available.
        unsafe { vminvq_f32(vminq_f32(vminq_f32(a[0], a[1]), vminq_f32(a[2], a[3]))) }
    }
    #[inline(always)]
    unsafe fn ilargest(a: Self::I) -> i32 {
        // SAFETY: the features are available.
        unsafe { vmaxvq_s32(vmaxq_s32(vmaxq_s32(a[0], a[1]), vmaxq_s32(a[2], a[3]))) }
    }
    #[inline(always)]
    unsafe fn isum(a: Self::I) -> i32 {
        // SAFETY: the features are available.
        unsafe { vaddvq_s32(vaddq_s32(vaddq_s32(a[0], a[1]), vaddq_s32(a[2], a[3]))) }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: prefetching any address is harmless. The intrinsic is not stable yet.
        unsafe { asm!("prfm pldl1keep, [{}]", in(reg) p, options(readonly, nostack, preserves_flags)) }
    }
}
