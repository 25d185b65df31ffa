//! The scalar ISA: plain loops over sixteen elements, written so that the compiler vectorizes them.

use super::SimdIsa;

#[derive(Clone, Copy)]
pub(crate) struct Scalar;

#[inline(always)]
fn map2<A: Copy, B: Copy, C, const N: usize>(a: [A; N], b: [B; N], f: impl Fn(A, B) -> C) -> [C; N] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// Σ over sixteen products for each row; `code` widens a byte.
#[inline(always)]
unsafe fn dot16(acc: [i32; 16], codes: &[[u8; 64]; 4], x: *const i8, code: impl Fn(u8) -> i32) -> [i32; 16] {
    let mut acc = acc;
    for (v, codes) in codes.iter().enumerate() {
        // SAFETY: the caller gives sixteen values.
        let x: [i32; 4] = unsafe { std::array::from_fn(|c| i32::from(*x.add(4 * v + c))) };
        for (r, acc) in acc.iter_mut().enumerate() {
            for (c, x) in x.iter().enumerate() {
                *acc += code(codes[4 * r + c]) * x;
            }
        }
    }
    acc
}

macro_rules! elementwise {
    ($($name:ident($a:ident, $b:ident: $t:ty) = $e:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name(a: $t, b: $t) -> $t {
            map2(a, b, |$a, $b| $e)
        }
    )*};
}

impl SimdIsa for Scalar {
    type F = [f32; 16];
    type I = [i32; 16];
    type B = [u8; 64];

    const WIDE_IS_SIGNED: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [x; 16]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: valid for sixteen elements by contract; any alignment.
        unsafe { p.cast::<Self::F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: Self::F) {
        // SAFETY: as for `load`.
        unsafe { p.cast::<Self::F>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        // SAFETY: as for `load`.
        let bits = unsafe { p.cast::<[u16; 16]>().read_unaligned() };
        bits.map(|b| half::f16::from_bits(b).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        // SAFETY: as for `load`.
        let bits = unsafe { p.cast::<[u16; 16]>().read_unaligned() };
        bits.map(|b| f32::from_bits(u32::from(b) << 16))
    }
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> Self::F {
        // SAFETY: as for `load`.
        let codes = unsafe { p.cast::<[i8; 16]>().read_unaligned() };
        // The sign extends to bit 14 too.
        codes.map(|code| half::f16::from_bits((i16::from(code) << 7) as u16 & 0xBF80).to_f32())
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, x: Self::F) {
        let bits = x.map(|x| half::f16::from_f32(x).to_bits());
        // SAFETY: as for `load`.
        unsafe { p.cast::<[u16; 16]>().write_unaligned(bits) }
    }

    elementwise! {
        add(a, b: Self::F) = a + b;
        sub(a, b: Self::F) = a - b;
        mul(a, b: Self::F) = a * b;
        div(a, b: Self::F) = a / b;
        max(a, b: Self::F) = if a > b { a } else { b };
        min(a, b: Self::F) = if a < b { a } else { b };
        iadd(a, b: Self::I) = a.wrapping_add(b);
        isub(a, b: Self::I) = a.wrapping_sub(b);
        imax(a, b: Self::I) = a.max(b);
        iand(a, b: Self::I) = a & b;
        band(a, b: Self::B) = a & b;
        bor(a, b: Self::B) = a | b;
        badd(a, b: Self::B) = a.wrapping_add(b);
    }

    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn largest(a: Self::F) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, |m, v| if v > m { v } else { m })
    }
    #[inline(always)]
    unsafe fn smallest(a: Self::F) -> f32 {
        a.into_iter().fold(f32::INFINITY, |m, v| if v < m { v } else { m })
    }
    #[inline(always)]
    unsafe fn ilargest(a: Self::I) -> i32 {
        a.into_iter().fold(i32::MIN, i32::max)
    }
    #[inline(always)]
    unsafe fn isum(a: Self::I) -> i32 {
        a.into_iter().fold(0, i32::wrapping_add)
    }
    #[inline(always)]
    unsafe fn isplat(x: i32) -> Self::I {
        [x; 16]
    }
    #[inline(always)]
    unsafe fn iload(p: *const i32) -> Self::I {
        // SAFETY: as for `load`.
        unsafe { p.cast::<Self::I>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn dot_pairs(acc: Self::I, a: Self::I, b: Self::I) -> Self::I {
        let low = |x: i32| i32::from(x as i16);
        std::array::from_fn(|i| acc[i] + low(a[i]) * low(b[i]) + (a[i] >> 16) * (b[i] >> 16))
    }
    #[inline(always)]
    unsafe fn istore(p: *mut i32, x: Self::I) {
        // SAFETY: as for `load`.
        unsafe { p.cast::<Self::I>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn iload_i8(p: *const i8) -> Self::I {
        // SAFETY: as for `load`.
        unsafe { p.cast::<[i8; 16]>().read_unaligned() }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn iload_u8(p: *const u8) -> Self::I {
        // SAFETY: as for `load`.
        unsafe { p.cast::<[u8; 16]>().read_unaligned() }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn istore_i8(p: *mut i8, x: Self::I) {
        // SAFETY: as for `load`.
        unsafe { p.cast::<[i8; 16]>().write_unaligned(x.map(|x| x as i8)) }
    }
    #[inline(always)]
    unsafe fn ishl<const N: u32>(a: Self::I) -> Self::I {
        a.map(|a| a << N)
    }
    #[inline(always)]
    unsafe fn ishr<const N: u32>(a: Self::I) -> Self::I {
        a.map(|a| (a as u32 >> N) as i32)
    }
    #[inline(always)]
    unsafe fn float(a: Self::I) -> Self::F {
        a.map(|a| a as f32)
    }
    #[inline(always)]
    unsafe fn bits(a: Self::F) -> Self::I {
        a.map(|a| a.to_bits() as i32)
    }
    #[inline(always)]
    unsafe fn from_bits(a: Self::I) -> Self::F {
        a.map(|a| f32::from_bits(a as u32))
    }

    #[inline(always)]
    unsafe fn bsplat(x: u8) -> Self::B {
        [x; 64]
    }
    #[inline(always)]
    unsafe fn bload(p: *const u8) -> Self::B {
        // SAFETY: as for `load`.
        unsafe { p.cast::<Self::B>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn bstore(p: *mut u8, x: Self::B) {
        // SAFETY: as for `load`.
        unsafe { p.cast::<Self::B>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn bshr<const N: u32>(a: Self::B) -> Self::B {
        a.map(|a| a >> N)
    }
    #[inline(always)]
    unsafe fn bshl<const N: u32>(a: Self::B) -> Self::B {
        a.map(|a| a << N)
    }
    #[inline(always)]
    unsafe fn blookup(table: &[u8; 16], x: Self::B) -> Self::B {
        x.map(|x| table[usize::from(x & 15)])
    }

    #[inline(always)]
    unsafe fn dot16(acc: Self::I, codes: &[Self::B; 4], x: *const i8) -> Self::I {
        // SAFETY: sixteen values by contract.
        unsafe { dot16(acc, codes, x, i32::from) }
    }
    #[inline(always)]
    unsafe fn dot16_wide(acc: Self::I, codes: &[Self::B; 4], x: *const i8) -> Self::I {
        // SAFETY: sixteen values by contract.
        unsafe { dot16(acc, codes, x, |c| i32::from((c ^ 0x80) as i8)) }
    }
    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}
}
