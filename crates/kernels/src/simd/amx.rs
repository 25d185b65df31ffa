//! AMX tiles of bfloat16: sixteen tokens times sixteen rows and a block of columns in one instruction, exact products
//! added up in f32. What of it stays in vector registers (scales, sums) is in assembly too, since compilers
//! keep no tile registers across statements.
//!
//! The dots of a block: `Σ` over even places of the record and `Σ` over odd ones, each a chain of fused
//! multiply-adds from the first pair to the last, then both together (Intel 64 manual, TDPBF16PS). A token's row sees
//! nothing of the others.

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

use super::{PairTable, TILE_ASKS, TileRun, WIDE_PAIRS};
use crate::matmul::bfloats::{BFLOAT_RECORD, BLOCK_SUM_AT, HALF_SUMS_AT};
use crate::quant::PANEL;

/// Whether the machine has AMX with bfloat16, AVX-512 VBMI, BF16 and FP16 beside it, and the system lets this process use them.
pub(super) fn is_available() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let vectors = is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512bf16")
            && is_x86_feature_detected!("avx512fp16");
        // Leaf 7: bit 22 is AMX-BF16, bit 24 AMX-TILE.
        let tiles = __cpuid_count(7, 0).edx & (1 << 22 | 1 << 24) == (1 << 22 | 1 << 24);
        vectors && tiles && is_permitted()
    })
}

/// Asks Linux for the tiles' state, which it keeps for processes that ask only.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// The operand of LDTILECFG.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Tile 0 holds dots, tile 1 tokens, tile 2 codes.
///
/// # Safety
/// [`is_available`]; at most sixteen tokens.
pub(super) unsafe fn configure(n_tokens: usize, halves: bool) {
    let (pairs, token_bytes) = if halves { (8, 32) } else { (16, 64) };
    let mut config =
        Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    config.row_bytes[..3].copy_from_slice(&[64, token_bytes, 64]);
    config.rows[..3].copy_from_slice(&[n_tokens as u8, n_tokens as u8, pairs]);
    // SAFETY: the tiles are there and the operand is whole.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly, preserves_flags)) };
}

/// # Safety
/// [`is_available`].
pub(super) unsafe fn release() {
    // SAFETY: the tiles are there.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
}

/// Does the work for every token `t` of a tile.
macro_rules! each_token {
    ($work:literal) => {
        concat!(
            ".irp t,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n.if \\t < {tokens}\n",
            $work,
            "\n.endif\n.endr"
        )
    };
}

/// Room for the dots of a tile.
#[repr(align(64))]
struct Dots([std::mem::MaybeUninit<f32>; 16 * PANEL]);

/// See [`super::Lane::tile_dots`]. What is done for a block is not spread by hand: the machine runs blocks ahead of each
/// other by itself.
///
/// # Safety
/// The tiles are shaped for `T` tokens and for `HALVES`; memory is valid as [`TileRun`] says.
#[inline(always)]
pub(super) unsafe fn tile_dots<const T: usize, const HALVES: bool, const MIN: bool>(run: &TileRun) {
    let mut dots = Dots([const { std::mem::MaybeUninit::uninit() }; 16 * PANEL]);
    let kept = if run.adds { 0xFFFF } else { 0 };
    // zmm0..15 are the outputs of the tokens.
    // SAFETY: reads and writes what the caller vouches for; all registers that change are named.
    unsafe {
        asm!(
            "kmovw k1, {kept:e}",
            "mov {at}, {out}",
            each_token!("vmovups zmm\\t {{k1}}{{z}}, [{at}]; add {at}, {stride}"),
            "2:",
            "test {ahead_step}, {ahead_step}; jz 3f",
            ".irp l,0,1,2,3",
            ".if \\l < {asks}",
            "prefetcht0 [{ahead} + \\l*64]",
            ".endif",
            ".endr",
            "add {ahead}, {ahead_step}",
            "3:",
            ".irp u,0,1",
            ".if \\u < {units}",
            "tileloadd tmm1, [{x} + {line}*1 + \\u*32]",
            "tileloadd tmm2, [{codes} + {line}*1 + \\u*512]",
            "tilezero tmm0",
            "tdpbf16ps tmm0, tmm1, tmm2",
            "tilestored [{dots} + {line}*1], tmm0",
            "vmovups zmm16, [{scales} + \\u*64]",
            each_token!("vfmadd231ps zmm\\t, zmm16, [{dots} + \\t*64]"),
            ".if {min}",
            "vmovups zmm17, [{mins} + \\u*64]",
            each_token!("vfmadd231ps zmm\\t, zmm17, dword ptr [{x} + {sums} + \\u*64 + \\t*4]{{1to16}}"),
            ".endif",
            ".endif",
            ".endr",
            "add {x}, {record}; add {codes}, 1024; add {scales}, {units}*64; add {mins}, {units}*64",
            "dec {n_blocks}",
            "jnz 2b",
            "mov {at}, {out}",
            each_token!("vmovups [{at}], zmm\\t; add {at}, {stride}"),
            // Else the compiler's next SSE instruction waits for all of this, to keep the registers' upper parts.
            "vzeroupper",
            x = inout(reg) run.x => _,
            codes = inout(reg) run.codes => _,
            scales = inout(reg) run.scales => _,
            mins = inout(reg) run.mins => _,
            n_blocks = inout(reg) run.n_blocks => _,
            ahead = inout(reg) run.ahead => _,
            ahead_step = in(reg) run.ahead_step,
            out = in(reg) run.out,
            stride = in(reg) run.stride * 4,
            at = out(reg) _,
            dots = in(reg) dots.0.as_mut_ptr(),
            line = in(reg) 64usize,
            kept = in(reg) kept,
            asks = const TILE_ASKS,
            tokens = const T,
            units = const if HALVES { 2 } else { 1 },
            sums = const if HALVES { HALF_SUMS_AT } else { BLOCK_SUM_AT },
            record = const BFLOAT_RECORD,
            min = const MIN as usize,
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _, out("zmm6") _,
            out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _, out("zmm12") _,
            out("zmm13") _, out("zmm14") _, out("zmm15") _, out("zmm16") _, out("zmm17") _, out("k1") _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _,
            options(nostack),
        );
    }
}

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
        let rounded: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(b, a));
        let order = _mm512_broadcast_i32x4(_mm_set_epi64x(ORDER + 0x0808_0808_0808_0808, ORDER));
        _mm512_storeu_si512(p.cast(), _mm512_shuffle_epi8(rounded, order));
    }
}

/// See [`super::Lane::sum_bfloats`].
///
/// # Safety
/// AVX-512 must be there, and 32 values at `p`.
#[inline(always)]
pub(super) unsafe fn sum_bfloats(p: *const u16) -> [f32; 2] {
    // SAFETY: the features are there and `p` is valid, by the caller.
    unsafe {
        let rounded = _mm512_loadu_si512(p.cast());
        let even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(rounded));
        let odd = _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(0xFFFF_0000_u32 as i32)));
        let sum = _mm512_add_ps(even, odd);
        let sum = _mm512_add_ps(sum, _mm512_shuffle_f32x4::<0b10_11_00_01>(sum, sum));
        let sum = _mm512_add_ps(sum, _mm512_permute_ps::<0b01_00_11_10>(sum));
        let sum = _mm512_add_ps(sum, _mm512_permute_ps::<0b10_11_00_01>(sum));
        [_mm512_cvtss_f32(sum), _mm_cvtss_f32(_mm512_extractf32x4_ps::<2>(sum))]
    }
}

/// See [`super::Lane::wide_pairs`].
///
/// # Safety
/// AVX-512 FP16 must be there.
#[inline(always)]
pub(super) unsafe fn wide_pairs(codes: __m512i) -> [__m512i; 2] {
    // SAFETY: the features are there.
    unsafe {
        let values = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
        // Words of 256 times the value.
        let odd = _mm512_and_si512(values, _mm512_set1_epi16(0xFF00_u16 as i16));
        [bfloats(_mm512_slli_epi16::<8>(values)), bfloats(odd)]
    }
}

/// Words of whole numbers, 256 to 32,768 or none, to bfloat16, by way of half floats: seven of their ten bits of
/// mantissa are enough, and their exponents 10111 to 11110 are 10000111 to 10001110 here.
#[inline(always)]
unsafe fn bfloats(words: __m512i) -> __m512i {
    // SAFETY: the features are there, by the caller.
    unsafe {
        let halves = _mm512_castph_si512(_mm512_cvtepi16_ph(words));
        // Four times the sign, five bits of exponent, seven of mantissa.
        let shifted = _mm512_srai_epi16::<3>(halves);
        let is_value = _mm512_test_epi16_mask(words, words);
        let (kept, set) = (_mm512_set1_epi16(0x87FF_u16 as i16), _mm512_set1_epi16(0x4000));
        // shifted & kept | set, or nothing
        let bfloats = _mm512_ternarylogic_epi32::<0xEA>(shifted, kept, set);
        _mm512_maskz_mov_epi16(is_value, bfloats)
    }
}

/// See [`super::Lane::table_pairs`].
///
/// # Safety
/// AVX-512 VBMI must be there.
#[inline(always)]
pub(super) unsafe fn table_pairs(codes: __m512i, table: &PairTable) -> [__m512i; 2] {
    // SAFETY: the features are there; tables are whole vectors.
    unsafe {
        let low = _mm512_permutexvar_epi8(codes, _mm512_loadu_si512(table.low.as_ptr().cast()));
        let high = _mm512_permutexvar_epi8(codes, _mm512_loadu_si512(table.high.as_ptr().cast()));
        pairs(low, high)
    }
}

/// See [`super::Lane::nibble_pairs`].
///
/// # Safety
/// AVX-512 BW must be there.
#[inline(always)]
pub(super) unsafe fn nibble_pairs(codes: __m512i, table: &PairTable) -> [[__m512i; 2]; 2] {
    // SAFETY: the features are there; the table is a whole vector.
    unsafe {
        let table = _mm512_loadu_si512(table.nibbles.as_ptr().cast());
        // The lowest five bits of a word choose one of 32, of which the upper half repeats the lower.
        let pick = |words| _mm512_permutexvar_epi16(words, table);
        let low = [pick(codes), pick(_mm512_srli_epi16::<8>(codes))];
        let high = [pick(_mm512_srli_epi16::<4>(codes)), pick(_mm512_srli_epi16::<12>(codes))];
        [low, high]
    }
}

/// 2^23 as bits: its floats are whole numbers, with the lowest in the last bit.
const WHOLE: i32 = 0x4B00_0000;

/// `(bits & mask) - zero` as floats.
#[inline(always)]
unsafe fn difference(bits: __m512i, mask: i32, zero: f32) -> __m512 {
    // SAFETY: the features are there, by the callers.
    unsafe {
        // bits & mask | WHOLE
        let bits = _mm512_ternarylogic_epi32::<0xEA>(bits, _mm512_set1_epi32(mask), _mm512_set1_epi32(WHOLE));
        _mm512_sub_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(f32::from_bits(WHOLE as u32) + zero))
    }
}

/// See [`super::Lane::wide_values`].
///
/// # Safety
/// AVX-512 must be there.
#[inline(always)]
pub(super) unsafe fn wide_values(codes: __m512i) -> [__m512; 4] {
    // SAFETY: the features are there. Bits 8 to 15 are 256 times a code.
    unsafe {
        let value = |bits| difference(bits, 0xFF00, 128.0 * WIDE_PAIRS);
        [
            value(_mm512_slli_epi32::<8>(codes)),
            value(codes),
            value(_mm512_srli_epi32::<8>(codes)),
            value(_mm512_srli_epi32::<16>(codes)),
        ]
    }
}

/// See [`super::Lane::nibble_values`].
///
/// # Safety
/// AVX-512 must be there.
#[inline(always)]
pub(super) unsafe fn nibble_values(codes: __m512i, table: &PairTable) -> [__m512; 4] {
    // SAFETY: the features are there; the table has sixteen values.
    unsafe {
        let values = _mm512_cvtepu16_epi32(_mm256_loadu_si256(table.nibbles.as_ptr().cast()));
        let values = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(values));
        // The lowest four bits of an element choose.
        let value = |bits| _mm512_permutexvar_ps(bits, values);
        [
            value(codes),
            value(_mm512_srli_epi32::<8>(codes)),
            value(_mm512_srli_epi32::<16>(codes)),
            value(_mm512_srli_epi32::<24>(codes)),
        ]
    }
}

/// See [`super::Lane::small_values`].
///
/// # Safety
/// AVX-512 must be there.
#[inline(always)]
pub(super) unsafe fn small_values(codes: __m512i, zero: u8) -> [__m512; 4] {
    // SAFETY: the features are there.
    unsafe {
        let value = |bits| difference(bits, 0xFF, f32::from(zero));
        [
            value(codes),
            value(_mm512_srli_epi32::<8>(codes)),
            value(_mm512_srli_epi32::<16>(codes)),
            value(_mm512_srli_epi32::<24>(codes)),
        ]
    }
}

/// Words of low and high bytes: of bytes 0 and 2 of every four, then of bytes 1 and 3.
#[inline(always)]
unsafe fn pairs(low: __m512i, high: __m512i) -> [__m512i; 2] {
    // SAFETY: the features are there, by the callers.
    unsafe {
        let low_bytes = _mm512_set1_epi16(0x00FF);
        // low_bytes ? a : b
        let even = _mm512_ternarylogic_epi32::<0xCA>(low_bytes, low, _mm512_slli_epi16::<8>(high));
        let odd = _mm512_ternarylogic_epi32::<0xCA>(low_bytes, _mm512_srli_epi16::<8>(low), high);
        [even, odd]
    }
}
