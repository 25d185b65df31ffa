//! SIMD instruction sets: a common interface of sixteen-element vectors, one implementation per ISA, and
//! run-time dispatch.
//!
//! Intrinsics live only here. A kernel is written once as a [`Kernel`] generic over [`SimdIsa`]; [`Isa::run`]
//! calls it inside a function compiled with the ISA's target features. All ISAs do the same IEEE operations
//! in the same order (fused multiply-add only where a kernel says so, no approximate instructions), so every
//! ISA gives the same bits. The exception is AMX, whose products with quantized matrices round differently.

mod math;
mod scalar;

#[cfg(target_arch = "x86_64")]
mod amx;
mod amx_isa;
#[cfg(target_arch = "x86_64")]
mod amx_operands;
#[cfg(target_arch = "x86_64")]
mod amx_scales;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_pair_tile;
#[cfg(target_arch = "x86_64")]
mod frame;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(test)]
mod tests;
mod tile_operands;
mod tiles;

pub(crate) use amx_isa::{AmxIsa, AmxKernel};
pub(crate) use math::{exp, gelu, gelu_tanh, silu, sum, tanh};
pub(crate) use tile_operands::{KeyRun, ProductRun, TILE_DOTS_BY, ValueRun};
pub(crate) use tiles::TileConfig;

/// The instruction sets that the kernels support, slowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IsaKind {
    /// Plain loops, vectorized by the compiler for the target's baseline.
    Scalar,
    /// x86-64 AVX2, FMA and F16C.
    Avx2,
    /// AVX2 with AVX-VNNI.
    Avx2Vnni,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512Vnni,
    /// AVX-512 with VBMI, BF16 and FP16, and AMX-BF16 tiles for quantized and 16-bit matrices.
    AmxBf16,
    /// aarch64 NEON.
    Neon,
    /// NEON with int8 dot products (`dotprod`).
    NeonDotprod,
}

/// An instruction set that this machine supports. Values come only from detection, so a value proves that its
/// instructions may be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Isa(IsaKind);

impl Isa {
    /// Plain loops, which every machine supports.
    pub const SCALAR: Self = Self(IsaKind::Scalar);

    /// The ISAs that this machine supports, slowest first.
    pub fn available() -> Vec<Self> {
        let mut isas = vec![Self::SCALAR];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            if avx2 {
                isas.push(Self(IsaKind::Avx2));
            }
            if avx2 && is_x86_feature_detected!("avxvnni") {
                isas.push(Self(IsaKind::Avx2Vnni));
            }
            if avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni")
            {
                isas.push(Self(IsaKind::Avx512Vnni));
                if amx::is_available() {
                    isas.push(Self(IsaKind::AmxBf16));
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            let neon = std::arch::is_aarch64_feature_detected!("neon");
            if neon {
                isas.push(Self(IsaKind::Neon));
            }
            if neon && std::arch::is_aarch64_feature_detected!("dotprod") {
                isas.push(Self(IsaKind::NeonDotprod));
            }
        }
        isas
    }

    /// The fastest ISA that this machine supports.
    pub fn best() -> Self {
        Self::available().into_iter().max().unwrap_or(Self::SCALAR)
    }

    /// Kind of the instruction set.
    pub const fn kind(self) -> IsaKind {
        self.0
    }

    /// Name for reports.
    pub const fn name(self) -> &'static str {
        match self.0 {
            IsaKind::Scalar => "scalar",
            IsaKind::Avx2 => "AVX2",
            IsaKind::Avx2Vnni => "AVX2 VNNI",
            IsaKind::Avx512Vnni => "AVX-512 VNNI",
            IsaKind::AmxBf16 => "AMX BF16",
            IsaKind::Neon => "NEON",
            IsaKind::NeonDotprod => "NEON dotprod",
        }
    }

    /// Maximum number of tokens (or query heads) of a register tile: their accumulators fit the vector
    /// registers together with the operands. A divisor of sixteen.
    pub(crate) const fn tile_tokens(self) -> usize {
        match self.0 {
            IsaKind::Avx512Vnni | IsaKind::AmxBf16 => 8,
            IsaKind::Avx2 | IsaKind::Avx2Vnni | IsaKind::Neon | IsaKind::NeonDotprod | IsaKind::Scalar => 4,
        }
    }

    /// [`SimdIsa::WIDE_IS_SLOW`] of the ISA.
    pub(crate) const fn wide_is_slow(self) -> bool {
        matches!(self.0, IsaKind::Avx2)
    }

    /// Whether quantized matrices are multiplied in AMX tiles of bf16.
    pub const fn has_tiles(self) -> bool {
        matches!(self.0, IsaKind::AmxBf16)
    }

    /// Runs the kernel on this ISA.
    ///
    /// # Safety
    /// The kernel's own conditions must hold.
    pub(crate) unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: this value proves that the machine has the ISA's features; the caller guarantees the kernel's conditions.
        unsafe {
            match self.0 {
                #[cfg(target_arch = "x86_64")]
                IsaKind::AmxBf16 | IsaKind::Avx512Vnni => avx512::run(kernel),
                #[cfg(target_arch = "x86_64")]
                IsaKind::Avx2Vnni => avx2::run_vnni(kernel),
                #[cfg(target_arch = "x86_64")]
                IsaKind::Avx2 => avx2::run(kernel),
                #[cfg(target_arch = "aarch64")]
                IsaKind::NeonDotprod => neon::run_dotprod(kernel),
                #[cfg(target_arch = "aarch64")]
                IsaKind::Neon => neon::run(kernel),
                _ => kernel.run::<scalar::Scalar>(),
            }
        }
    }

    /// Runs a kernel without conditions of its own.
    pub(crate) fn run_checked<K: Kernel + CheckedKernel>(self, kernel: K) -> K::Output {
        // SAFETY: a checked kernel has no conditions.
        unsafe { self.run(kernel) }
    }

    /// Runs a kernel that needs AMX tiles.
    ///
    /// # Safety
    /// The kernel's own conditions must hold.
    ///
    /// # Panics
    /// When the ISA has no tiles: see [`Isa::has_tiles`].
    pub(crate) unsafe fn run_amx<K: AmxKernel>(self, kernel: K) -> K::Output {
        match self.0 {
            // SAFETY: this value proves that the machine has AMX; the caller guarantees the kernel's conditions.
            #[cfg(target_arch = "x86_64")]
            IsaKind::AmxBf16 => unsafe { avx512::run_amx(kernel) },
            _ => {
                drop(kernel);
                panic!("{} has no tiles", self.name())
            }
        }
    }

    /// Runs a kernel that needs AMX tiles and has no conditions of its own.
    ///
    /// # Panics
    /// When the ISA has no tiles: see [`Isa::has_tiles`].
    pub(crate) fn run_amx_checked<K: AmxKernel + CheckedKernel>(self, kernel: K) -> K::Output {
        // SAFETY: a checked kernel has no conditions.
        unsafe { self.run_amx(kernel) }
    }
}

/// A kernel generic over the ISA. Implementations and everything they call are `#[inline(always)]`, so that
/// they are compiled with the target features of the ISA's entry function.
pub(crate) trait Kernel {
    type Output;

    /// # Safety
    /// The ISA's features must be available; pointers in `self` must be valid as the kernel documents.
    unsafe fn run<S: SimdIsa>(self) -> Self::Output;
}

/// Marks a [`Kernel`] or [`AmxKernel`] without conditions of its own.
///
/// # Safety
/// Running it must be sound for every value of the type on machines with the ISA's features: it accesses
/// memory through slices whose lengths it checks, or only prefetches.
pub(crate) unsafe trait CheckedKernel {}

/// Prefetches `n_bytes` from `from` on: into L1 if `TO_L1` (short prefetch distances), otherwise into L2.
///
/// # Safety
/// The ISA's features must be available; the bytes need not be valid.
#[inline(always)]
pub(crate) unsafe fn prefetch_bytes<S: SimdIsa, const TO_L1: bool>(from: *const u8, n_bytes: usize) {
    for at in (0..n_bytes).step_by(64) {
        let line = from.wrapping_add(at);
        // SAFETY: any address may be prefetched.
        unsafe { if TO_L1 { S::prefetch_l1(line) } else { S::prefetch(line) } };
    }
}

/// Operands of [`SimdIsa::pair_tile`]: one block, or half a block, of eight tokens and two panels.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "no other ISA has code of its own for it")
)]
pub(crate) struct PairBlock {
    /// int8 codes of the tokens, 32 bytes apart.
    pub(crate) x: *const i8,
    /// The tokens' record, offset to the first token's entries.
    pub(crate) record: *const u8,
    pub(crate) codes: [*const u8; 2],
    pub(crate) sums: [*const i32; 2],
    pub(crate) scales: [*const f32; 2],
    pub(crate) mins: [*const f32; 2],
    /// Accumulators, [8][16] each.
    pub(crate) acc: [*mut f32; 2],
}

/// Vectors of sixteen f32 (`F`), sixteen i32 (`I`) or sixty-four bytes (`B`, four for each of sixteen rows).
///
/// # Safety of all functions
/// The ISA's features must be available. Loads and stores need pointers valid for the whole vector, of any
/// alignment.
#[allow(clippy::missing_safety_doc, reason = "one condition for all, above")]
pub(crate) trait SimdIsa: Copy + 'static {
    type F: Copy;
    type I: Copy;
    type B: Copy;

    /// Whether [`SimdIsa::dot16_wide`] itself subtracts 128 from the codes.
    const WIDE_IS_SIGNED: bool;
    /// Whether [`SimdIsa::dot16`] takes fewer instructions than [`SimdIsa::dot16_wide`].
    const WIDE_IS_SLOW: bool = false;
    /// Number of 16-element vectors that the registers hold.
    const REGISTERS: usize = 8;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, x: Self::F);
    unsafe fn load_f16(p: *const u16) -> Self::F;
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    /// Sixteen numbers in E4M3, each divided by 256: f16 numbers with the same sign, exponent and mantissa,
    /// since the bias of f16 is larger by eight. The two codes of NaN count as ±480.
    unsafe fn load_e4m3(p: *const u8) -> Self::F;
    /// Converts to f16, rounded to nearest even, and stores.
    unsafe fn store_f16(p: *mut u16, x: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a > b ? a : b`, element by element: `b` where either is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b`, element by element: `b` where either is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;

    /// The largest element; unspecified if one is NaN.
    unsafe fn largest(a: Self::F) -> f32;
    /// The smallest element; unspecified if one is NaN.
    unsafe fn smallest(a: Self::F) -> f32;

    unsafe fn isplat(x: i32) -> Self::I;
    unsafe fn iload(p: *const i32) -> Self::I;
    unsafe fn istore(p: *mut i32, x: Self::I);
    /// Sixteen i8, sign-extended.
    unsafe fn iload_i8(p: *const i8) -> Self::I;
    /// Sixteen u8, zero-extended.
    unsafe fn iload_u8(p: *const u8) -> Self::I;
    /// The low byte of each element.
    unsafe fn istore_i8(p: *mut i8, x: Self::I);
    unsafe fn iadd(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn isub(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn imax(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn iand(a: Self::I, b: Self::I) -> Self::I;
    /// The largest element of the vector.
    unsafe fn ilargest(a: Self::I) -> i32;
    /// The sum of the elements.
    unsafe fn isum(a: Self::I) -> i32;
    unsafe fn ishl<const N: u32>(a: Self::I) -> Self::I;
    /// Shifts each element right, filling with zeros.
    unsafe fn ishr<const N: u32>(a: Self::I) -> Self::I;
    /// Converts integers to floats.
    unsafe fn float(a: Self::I) -> Self::F;
    /// The bits of the floats.
    unsafe fn bits(a: Self::F) -> Self::I;
    /// The floats with these bits.
    unsafe fn from_bits(a: Self::I) -> Self::F;

    unsafe fn bsplat(x: u8) -> Self::B;
    unsafe fn bload(p: *const u8) -> Self::B;
    unsafe fn bstore(p: *mut u8, x: Self::B);
    unsafe fn band(a: Self::B, b: Self::B) -> Self::B;
    unsafe fn bor(a: Self::B, b: Self::B) -> Self::B;
    unsafe fn badd(a: Self::B, b: Self::B) -> Self::B;
    /// Shifts 16-bit units right: the high bits of each byte are unspecified.
    unsafe fn bshr<const N: u32>(a: Self::B) -> Self::B;
    /// Shifts 16-bit units left: the low bits of each byte are unspecified.
    unsafe fn bshl<const N: u32>(a: Self::B) -> Self::B;
    /// `table[x]` for every byte `x < 16`.
    unsafe fn blookup(table: &[u8; 16], x: Self::B) -> Self::B;

    /// `acc[r] + Σ_{v<4, c<4} codes[v][r][c] x[4v + c]` with codes below 64 and `x >= -127`.
    unsafe fn dot16(acc: Self::I, codes: &[Self::B; 4], x: *const i8) -> Self::I;
    /// The dot product above for codes up to 255, with 128 subtracted from each code if
    /// [`SimdIsa::WIDE_IS_SIGNED`].
    unsafe fn dot16_wide(acc: Self::I, codes: &[Self::B; 4], x: *const i8) -> Self::I;

    /// Whether [`SimdIsa::pair_tile`] is implemented.
    const HAS_PAIR_TILE: bool = false;
    /// Adds a block (`VECTORS` = 8) or half a block (4) to the accumulators of eight tokens times two panels.
    /// `PAIRS` and `SUMS` are the offsets of the tokens' zero-point pairs and sums in their record.
    unsafe fn pair_tile<const VECTORS: usize, const PAIRS: usize, const SUMS: usize, const MIN: bool>(
        block: PairBlock,
    ) {
        let _ = block;
        unreachable!("the ISA has no kernel for two panels");
    }

    /// `acc + a.low b.low + a.high b.high` of the i16 halves of every element.
    unsafe fn dot_pairs(acc: Self::I, a: Self::I, b: Self::I) -> Self::I;

    /// Prefetches the cache line at `p` into L2; `p` need not be valid.
    unsafe fn prefetch(p: *const u8);
    /// Prefetches into L1; by default the same as [`Self::prefetch`].
    unsafe fn prefetch_l1(p: *const u8) {
        // SAFETY: the ISA's features are available by the caller; any address may be prefetched.
        unsafe { Self::prefetch(p) }
    }
}
