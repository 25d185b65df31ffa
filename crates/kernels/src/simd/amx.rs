//! AMX tiles of bfloat16: sixteen tokens times sixteen rows and a block of columns in one instruction, exact products
//! added up in f32. It is assembly, since Rust has no stable intrinsics for it. Sums stay in their tiles from one of these
//! functions to the next: compilers have no use for tile registers, and nothing that runs in between touches them.
//!
//! A block adds to an output: `Σ` over even places of the record and `Σ` over odd ones, each a chain of fused
//! multiply-adds from the first pair to the last, both together (Intel 64 manual, TDPBF16PS). A token's row sees
//! nothing of the others.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use super::{KeyRun, ValueRun};
use crate::matmul::bfloats::ROW_BYTES;
use crate::quant::PAIRS_BYTES;

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

/// Tiles 0 to 3 hold sums, 4 and 5 tokens, 6 and 7 what they meet, of which there are sixteen pairs or eight.
///
/// # Safety
/// [`is_available`]; at most sixteen tokens.
pub(super) unsafe fn configure(n_tokens: usize, n_pairs: usize) {
    let mut config =
        Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    config.row_bytes[..8].fill(64);
    config.row_bytes[4..6].fill(4 * n_pairs as u16);
    config.rows[..6].fill(n_tokens as u8);
    config.rows[6..8].fill(n_pairs as u8);
    // SAFETY: the tiles are there and the operand is whole.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly, preserves_flags)) };
}

/// # Safety
/// [`is_available`].
pub(super) unsafe fn release() {
    // SAFETY: the tiles are there.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
}

/// The sums from memory to tiles 0 to 3: two groups' rows at `s0` and `s1`, so many bytes apart, and the second column of each
/// so many bytes on.
macro_rules! load_sums {
    ($stride:literal, $next:literal) => {
        concat!(
            "tileloadd tmm0, [{s0} + ",
            $stride,
            "*1]\n",
            ".if {p} > 1; tileloadd tmm1, [{s0} + ",
            $stride,
            "*1 + ",
            $next,
            "]; .endif\n",
            ".if {g} > 1; tileloadd tmm2, [{s1} + ",
            $stride,
            "*1]; .endif\n",
            ".if {g} > 1 && {p} > 1; tileloadd tmm3, [{s1} + ",
            $stride,
            "*1 + ",
            $next,
            "]; .endif",
        )
    };
}

/// And back.
macro_rules! store_sums {
    ($stride:literal, $next:literal) => {
        concat!(
            "tilestored [{s0} + ",
            $stride,
            "*1], tmm0\n",
            ".if {p} > 1; tilestored [{s0} + ",
            $stride,
            "*1 + ",
            $next,
            "], tmm1; .endif\n",
            ".if {g} > 1; tilestored [{s1} + ",
            $stride,
            "*1], tmm2; .endif\n",
            ".if {g} > 1 && {p} > 1; tilestored [{s1} + ",
            $stride,
            "*1 + ",
            $next,
            "], tmm3; .endif",
        )
    };
}

/// Adds what tiles of rows (4 and 5) and of columns (6 and 7) make to the sums.
macro_rules! products {
    () => {
        concat!(
            "tdpbf16ps tmm0, tmm4, tmm6\n",
            ".if {p} > 1; tdpbf16ps tmm1, tmm4, tmm7; .endif\n",
            ".if {g} > 1; tdpbf16ps tmm2, tmm5, tmm6; .endif\n",
            ".if {g} > 1 && {p} > 1; tdpbf16ps tmm3, tmm5, tmm7; .endif",
        )
    };
}

/// See [`super::Lane::zero_sums`].
///
/// # Safety
/// The tiles are shaped.
#[inline(always)]
pub(super) unsafe fn zero_sums() {
    // SAFETY: no memory is touched.
    unsafe {
        asm!(
            "tilezero tmm0; tilezero tmm1; tilezero tmm2; tilezero tmm3",
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            options(nostack, nomem, preserves_flags),
        );
    }
}

/// See [`super::Lane::add_products`].
///
/// # Safety
/// The tiles are shaped for the groups' tokens; groups have a record at each of `x`, panels a block at each of `w`.
#[inline(always)]
pub(super) unsafe fn add_products<const G: usize, const P: usize, const X: usize, const W: usize>(
    x: [*const u8; 2],
    w: [*const u8; 2],
) {
    // SAFETY: reads what the caller vouches for; all registers that change are named.
    unsafe {
        asm!(
            "tileloadd tmm4, [{x0} + {row}*1]",
            "tileloadd tmm6, [{w0} + {line}*1]",
            ".if {g} > 1; tileloadd tmm5, [{x1} + {row}*1]; .endif",
            ".if {p} > 1; tileloadd tmm7, [{w1} + {line}*1]; .endif",
            products!(),
            ".if {x_parts} > 1",
            "tileloadd tmm4, [{x0} + {row}*1 + {x_part}]",
            ".if {g} > 1; tileloadd tmm5, [{x1} + {row}*1 + {x_part}]; .endif",
            products!(),
            ".endif",
            ".if {w_parts} > 1",
            "tileloadd tmm4, [{x0} + {row}*1]",
            ".if {g} > 1; tileloadd tmm5, [{x1} + {row}*1]; .endif",
            "tileloadd tmm6, [{w0} + {line}*1 + {w_part}]",
            ".if {p} > 1; tileloadd tmm7, [{w1} + {line}*1 + {w_part}]; .endif",
            products!(),
            ".endif",
            x0 = in(reg) x[0],
            x1 = in(reg) x[1],
            w0 = in(reg) w[0],
            w1 = in(reg) w[1],
            row = in(reg) X * ROW_BYTES,
            line = in(reg) 64usize,
            g = const G,
            p = const P,
            x_parts = const X,
            w_parts = const W,
            x_part = const ROW_BYTES,
            w_part = const PAIRS_BYTES,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
            out("tmm7") _,
            options(nostack, readonly, preserves_flags),
        );
    }
}

/// See [`super::Lane::load_sums`].
///
/// # Safety
/// The tiles are shaped for the groups' tokens, and each of `sums` has `P` tiles.
#[inline(always)]
pub(super) unsafe fn load_sums<const G: usize, const P: usize>(sums: [*mut f32; 2]) {
    // SAFETY: reads what the caller vouches for; all registers that change are named.
    unsafe {
        asm!(
            load_sums!("{line}", "1024"),
            s0 = in(reg) sums[0],
            s1 = in(reg) sums[1],
            line = in(reg) 64usize,
            g = const G,
            p = const P,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            options(nostack, readonly, preserves_flags),
        );
    }
}

/// See [`super::Lane::store_sums`].
///
/// # Safety
/// The tiles are shaped for the groups' tokens, and each of `sums` has room for `P` tiles.
#[inline(always)]
pub(super) unsafe fn store_sums<const G: usize, const P: usize>(sums: [*mut f32; 2]) {
    // SAFETY: writes what the caller vouches for.
    unsafe {
        asm!(
            store_sums!("{line}", "1024"),
            s0 = in(reg) sums[0],
            s1 = in(reg) sums[1],
            line = in(reg) 64usize,
            g = const G,
            p = const P,
            options(nostack, preserves_flags),
        );
    }
}

/// See [`super::Lane::key_dots`].
///
/// # Safety
/// The tiles are shaped for the groups' rows; memory is valid as [`KeyRun`] says.
#[inline(always)]
pub(super) unsafe fn key_dots<const G: usize, const P: usize>(run: &KeyRun) {
    // SAFETY: reads and writes what the caller vouches for; all registers that change are named.
    unsafe {
        asm!(
            "tilezero tmm0; tilezero tmm1; tilezero tmm2; tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{q0} + {line}*1]",
            ".if {g} > 1; tileloadd tmm5, [{q1} + {line}*1]; .endif",
            "tileloadd tmm6, [{k0} + {line}*1]",
            ".if {p} > 1; tileloadd tmm7, [{k1} + {line}*1]; .endif",
            products!(),
            "tileloadd tmm4, [{q0} + {line}*1 + 1024]",
            ".if {g} > 1; tileloadd tmm5, [{q1} + {line}*1 + 1024]; .endif",
            products!(),
            "add {q0}, 2048; add {q1}, 2048; add {k0}, 1024; add {k1}, 1024",
            "dec {n_steps}",
            "jnz 2b",
            store_sums!("{stride}", "64"),
            q0 = inout(reg) run.queries[0] => _,
            q1 = inout(reg) run.queries[1] => _,
            k0 = inout(reg) run.keys[0] => _,
            k1 = inout(reg) run.keys[1] => _,
            n_steps = inout(reg) run.n_steps => _,
            s0 = in(reg) run.scores[0],
            s1 = in(reg) run.scores[1],
            stride = in(reg) run.stride * 4,
            line = in(reg) 64usize,
            g = const G,
            p = const P,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
            out("tmm7") _,
            options(nostack),
        );
    }
}

/// See [`super::Lane::value_dots`].
///
/// # Safety
/// The tiles are shaped for the groups' rows and for blocks of sixteen tokens; memory is valid as [`ValueRun`] says.
#[inline(always)]
pub(super) unsafe fn value_dots<const G: usize>(run: &ValueRun) {
    // SAFETY: reads and writes what the caller vouches for; all registers that change are named.
    unsafe {
        asm!(
            load_sums!("{stride}", "64"),
            "2:",
            "mov {v}, [{blocks}]; add {v}, {offset}",
            "tileloadd tmm4, [{w0} + {line}*1]",
            ".if {g} > 1; tileloadd tmm5, [{w1} + {line}*1]; .endif",
            "tileloadd tmm6, [{v} + {line}*1]",
            "tileloadd tmm7, [{v} + {line}*1 + 512]",
            products!(),
            "tileloadd tmm4, [{w0} + {line}*1 + 32]",
            ".if {g} > 1; tileloadd tmm5, [{w1} + {line}*1 + 32]; .endif",
            products!(),
            "add {w0}, 1024; add {w1}, 1024; add {blocks}, 8",
            "dec {n_blocks}",
            "jnz 2b",
            store_sums!("{stride}", "64"),
            w0 = inout(reg) run.weights[0] => _,
            w1 = inout(reg) run.weights[1] => _,
            blocks = inout(reg) run.blocks => _,
            n_blocks = inout(reg) run.n_blocks => _,
            v = out(reg) _,
            offset = in(reg) run.offset,
            s0 = in(reg) run.sums[0],
            s1 = in(reg) run.sums[1],
            stride = in(reg) run.stride * 4,
            line = in(reg) 64usize,
            g = const G,
            p = const 2,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
            out("tmm7") _,
            options(nostack),
        );
    }
}
