//! Instruction sets: one vocabulary of sixteen-wide vectors, spoken by every lane, and the choice between them.
//!
//! Intrinsics live only here. A kernel is written once as a [`Task`] over [`Lane`]; [`Isa::run`] calls it inside a
//! function compiled for the lane's features. All lanes do the same IEEE operations in the same order (fused
//! multiply-add where a kernel says so and nowhere else, no approximate instruction), so every lane gives the same bits;
//! but for lanes with tiles, whose products with quantized matrices have bits of their own.

mod math;
mod scalar;

#[cfg(target_arch = "x86_64")]
mod amx;
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
mod tiles;

use crate::quant::ScaleKind;

pub(crate) use math::{exp, gelu_tanh, silu, sum, tanh};
pub(crate) use tiles::{KeyRun, TILE_DOTS_BY, TileConfig, ValueRun};

/// An instruction set that the kernels have a lane for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain loops, vectorized by the compiler for the target's baseline.
    Scalar,
    /// x86-64 AVX2, FMA and F16C.
    Avx2,
    /// AVX2 with AVX-VNNI.
    Avx2Vnni,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512Vnni,
    /// AVX-512 with VBMI, BF16 and FP16, and AMX tiles of bfloat16 for quantized matrices.
    AmxBf16,
    /// aarch64 NEON.
    Neon,
    /// NEON with dot products of bytes.
    NeonDotprod,
}

impl Isa {
    /// The lanes that this machine can run, slowest first.
    pub fn available() -> Vec<Self> {
        let mut lanes = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            if avx2 {
                lanes.push(Self::Avx2);
            }
            if avx2 && is_x86_feature_detected!("avxvnni") {
                lanes.push(Self::Avx2Vnni);
            }
            if avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni")
            {
                lanes.push(Self::Avx512Vnni);
                if amx::is_available() {
                    lanes.push(Self::AmxBf16);
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            let neon = std::arch::is_aarch64_feature_detected!("neon");
            if neon {
                lanes.push(Self::Neon);
            }
            if neon && std::arch::is_aarch64_feature_detected!("dotprod") {
                lanes.push(Self::NeonDotprod);
            }
        }
        lanes
    }

    /// The fastest lane of this machine.
    pub fn best() -> Self {
        Self::available().into_iter().max().unwrap_or(Self::Scalar)
    }

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "AVX2",
            Self::Avx2Vnni => "AVX2 VNNI",
            Self::Avx512Vnni => "AVX-512 VNNI",
            Self::AmxBf16 => "AMX BF16",
            Self::Neon => "NEON",
            Self::NeonDotprod => "NEON dotprod",
        }
    }

    /// Tokens, or rows of queries, whose accumulators fit the vector registers beside what they meet; a divisor of sixteen.
    pub(crate) const fn tile_tokens(self) -> usize {
        match self {
            Self::Avx512Vnni | Self::AmxBf16 => 8,
            Self::Avx2 | Self::Avx2Vnni | Self::Neon | Self::NeonDotprod | Self::Scalar => 4,
        }
    }

    /// What [`Lane::WIDE_IS_SLOW`] says.
    pub(crate) const fn wide_is_slow(self) -> bool {
        matches!(self, Self::Avx2)
    }

    /// Whether quantized matrices are multiplied in tiles of bfloat16.
    pub const fn has_tiles(self) -> bool {
        matches!(self, Self::AmxBf16)
    }

    /// Runs the task on this lane.
    ///
    /// # Safety
    /// This machine must have the lane (see [`Isa::available`]), and the task's own conditions must hold.
    pub(crate) unsafe fn run<T: Task>(self, task: T) -> T::Output {
        // SAFETY: the caller vouches for the lane's features and the task's pointers.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Self::AmxBf16 if T::USES_TILES => avx512::run_tiles(task),
                #[cfg(target_arch = "x86_64")]
                Self::AmxBf16 | Self::Avx512Vnni => avx512::run(task),
                #[cfg(target_arch = "x86_64")]
                Self::Avx2Vnni => avx2::run_vnni(task),
                #[cfg(target_arch = "x86_64")]
                Self::Avx2 => avx2::run(task),
                #[cfg(target_arch = "aarch64")]
                Self::NeonDotprod => neon::run_dotprod(task),
                #[cfg(target_arch = "aarch64")]
                Self::Neon => neon::run(task),
                _ => task.run::<scalar::Scalar>(),
            }
        }
    }
}

/// A kernel written over any lane. Implementations and all they call are `#[inline(always)]`, so that they are
/// compiled with the features of the lane's entry function.
pub(crate) trait Task {
    type Output;
    /// Whether it is another task where [`Lane::HAS_TILES`].
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no other lane has tiles"))]
    const USES_TILES: bool = false;

    /// # Safety
    /// The lane's features must be there; pointers in `self` must be valid for what the task documents.
    unsafe fn run<L: Lane>(self) -> Self::Output;
}

/// Asks for the cache lines of so many bytes; `NEAR`, where few bytes are asked for before they are wanted.
///
/// # Safety
/// The lane's features must be there; the bytes need not be valid.
#[inline(always)]
pub(crate) unsafe fn ask<L: Lane, const NEAR: bool>(from: *const u8, n_bytes: usize) {
    for at in (0..n_bytes).step_by(64) {
        let line = from.wrapping_add(at);
        // SAFETY: any address may be asked for.
        unsafe { if NEAR { L::prefetch_near(line) } else { L::prefetch(line) } };
    }
}

fn no_tiles() -> ! {
    unreachable!("the lane has no tiles")
}

/// One block, or half of it, of eight tokens and two panels: see `matmul::tile`.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "no other lane has code of its own for it")
)]
pub(crate) struct PairBlock {
    /// Codes of the tokens, 32 bytes apart.
    pub(crate) x: *const i8,
    /// The tokens' record, from the first token's entries on.
    pub(crate) record: *const u8,
    pub(crate) codes: [*const u8; 2],
    pub(crate) sums: [*const i32; 2],
    pub(crate) scales: [*const f32; 2],
    pub(crate) mins: [*const f32; 2],
    /// [8][16] each.
    pub(crate) acc: [*mut f32; 2],
}

/// Sixteen f32 (`F`), sixteen i32 (`I`) or sixty-four bytes (`B`, four for each of sixteen rows).
///
/// # Safety of all functions
/// The lane's features must be there. Loads and stores need pointers valid for the whole vector, of any alignment.
#[allow(clippy::missing_safety_doc, reason = "one condition for all, above")]
pub(crate) trait Lane: Copy + 'static {
    type F: Copy;
    type I: Copy;
    type B: Copy;

    /// Whether [`Lane::dot16_wide`] subtracts 128 from the codes by itself.
    const WIDE_IS_SIGNED: bool;
    /// Whether [`Lane::dot16`] takes fewer instructions than [`Lane::dot16_wide`].
    const WIDE_IS_SLOW: bool = false;
    /// Vectors that its registers hold.
    const REGISTERS: usize = 8;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, x: Self::F);
    unsafe fn load_f16(p: *const u16) -> Self::F;
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    /// Rounds to nearest even.
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

    /// The greatest element; unspecified with a NaN among them.
    unsafe fn largest(a: Self::F) -> f32;
    /// The least element; unspecified with a NaN among them.
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
    /// The greatest element.
    unsafe fn ilargest(a: Self::I) -> i32;
    /// The sum of the elements.
    unsafe fn isum(a: Self::I) -> i32;
    unsafe fn ishl<const N: u32>(a: Self::I) -> Self::I;
    /// Shifts zeros in.
    unsafe fn ishr<const N: u32>(a: Self::I) -> Self::I;
    /// The value as a float.
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
    /// The same with codes up to 255, less 128 each if [`Lane::WIDE_IS_SIGNED`].
    unsafe fn dot16_wide(acc: Self::I, codes: &[Self::B; 4], x: *const i8) -> Self::I;

    /// Whether the lane has code of its own for eight tokens times two panels; only then may it be called.
    const HAS_PAIR_TILE: bool = false;
    /// Adds a block (`VECTORS` = 8) or half a block (4) to the outputs; the tokens' pairs and sums stand at these offsets
    /// in their record.
    unsafe fn pair_tile<const VECTORS: usize, const PAIRS: usize, const SUMS: usize, const MIN: bool>(
        block: PairBlock,
    ) {
        let _ = block;
        unreachable!("the lane has no such code");
    }

    /// Whether the lane multiplies quantized matrices in tiles of bfloat16; only then may the next twelve be called.
    const HAS_TILES: bool = false;
    /// Rounds 32 columns, times a power of two (see [`TILE_DOTS_BY`]), to bfloat16 (nearest even), in the order of the
    /// pairs that codes come in.
    unsafe fn store_bfloats(p: *mut u16, a: Self::F, b: Self::F) {
        let _ = (p, a, b);
        no_tiles()
    }
    /// The scale and the min (or the scale again) of a block's first half and of its second, from where those of its
    /// superblock and its own are stored: times two to the `power` (the bits of a half float), rounded to half floats, each
    /// of them twice, for the two columns of a pair.
    unsafe fn pair_scales(
        kind: ScaleKind,
        supers: *const u8,
        scales: *const u8,
        power: u16,
    ) -> [[Self::B; 2]; 2] {
        let _ = (kind, supers, scales, power);
        no_tiles()
    }
    /// Codes of value + 128, four columns of sixteen rows, to pairs of weights in bfloat16: columns 0 and 2 of all rows,
    /// then columns 1 and 3. A product, with a min added if there is one, is rounded to a half float, then to bfloat16.
    unsafe fn byte_pairs(has_min: bool, codes: Self::B, scale: [Self::B; 2]) -> [Self::B; 2] {
        let _ = (has_min, codes, scale);
        no_tiles()
    }
    /// The same of two codes in each byte, of the value + 8 or, with a min, of the value: of the low halves, then of the high
    /// ones.
    unsafe fn nibble_pairs(has_min: bool, codes: Self::B, scale: [Self::B; 2]) -> [[Self::B; 2]; 2] {
        let _ = (has_min, codes, scale);
        no_tiles()
    }
    /// Sets the tiles of sums to zeros. From here on, or from [`Self::load_sums`], they stay what the functions below leave,
    /// since compilers have no use for tiles.
    unsafe fn zero_sums() {
        no_tiles()
    }
    /// Adds to the sums a block of `G` groups of tokens, in `X` parts of bfloat16, times `P` panels, in `W` parts, the high
    /// part first: all products of parts but that of the low ones.
    unsafe fn add_products<const G: usize, const P: usize, const X: usize, const W: usize>(
        x: [*const u8; 2],
        w: [*const u8; 2],
    ) {
        let _ = (x, w);
        no_tiles()
    }
    /// Each group's [panel][16 tokens][16 rows] sums, from memory.
    unsafe fn load_sums<const G: usize, const P: usize>(sums: [*mut f32; 2]) {
        let _ = sums;
        no_tiles()
    }
    /// And back.
    unsafe fn store_sums<const G: usize, const P: usize>(sums: [*mut f32; 2]) {
        let _ = sums;
        no_tiles()
    }

    /// Rounds to bfloat16 (nearest even).
    unsafe fn store_bf16(p: *mut u16, x: Self::F) {
        let _ = (p, x);
        no_tiles()
    }
    /// In two parts of bfloat16: the nearest, and what that leaves over, both rounded (nearest even).
    unsafe fn store_split(high: *mut u16, low: *mut u16, x: Self::F) {
        let _ = (high, low, x);
        no_tiles()
    }
    /// See [`KeyRun`].
    unsafe fn key_dots<const G: usize, const P: usize>(run: &KeyRun) {
        let _ = run;
        no_tiles()
    }
    /// See [`ValueRun`].
    unsafe fn value_dots<const G: usize>(run: &ValueRun) {
        let _ = run;
        no_tiles()
    }

    /// `acc + a.low b.low + a.high b.high` of the i16 halves of every element.
    unsafe fn dot_pairs(acc: Self::I, a: Self::I, b: Self::I) -> Self::I;

    /// Asks for the cache line at `p`, which need not be valid.
    unsafe fn prefetch(p: *const u8);
    /// Into the first cache, where a lane otherwise asks for the second.
    unsafe fn prefetch_near(p: *const u8) {
        // SAFETY: as above.
        unsafe { Self::prefetch(p) }
    }
}
