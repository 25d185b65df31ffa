//! AMX-BF16 tiles: sixteen tokens times sixteen weight rows over a block of columns in one instruction, with
//! exact products accumulated in f32. Written in assembly, since Rust has no stable AMX intrinsics. Each
//! block of assembly loads the tiles that it needs and stores its accumulators: no tile lives from one block
//! to another, since the compiler promises nothing about registers in between. Only the configuration of the
//! tiles, which no compiled code changes, stays loaded from [`configure`] to [`release`].
//!
//! For each output, TDPBF16PS sums the even and the odd elements of the record in separate chains of fused
//! multiply-adds, first pair to last, and adds both (Intel 64 manual). A token's row does not depend on the
//! other rows.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use super::{KeyRun, ProductRun, ValueRun};
use crate::layout::PAIRS_BYTES;
use crate::layout::ROW_BYTES;

/// Whether the machine has AMX-BF16 and AVX-512 VBMI, BF16 and FP16, and the kernel grants this process the
/// tile state.
pub(super) fn is_available() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let vectors = is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512bf16")
            && is_x86_feature_detected!("avx512fp16");
        // Leaf 7: bit 22 is AMX-BF16, bit 24 AMX-TILE.
        let tiles = __cpuid_count(7, 0).edx & (1 << 22 | 1 << 24) == (1 << 22 | 1 << 24);
        vectors && tiles && throng_os::tile_registers::request()
    })
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

/// Tiles 0 to 3 are accumulators, 4 and 5 activations, 6 and 7 weights (sixteen or eight column pairs).
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
    // SAFETY: AMX is available and the operand is complete.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly, preserves_flags)) };
}

/// # Safety
/// [`is_available`].
pub(super) unsafe fn release() {
    // SAFETY: AMX is available.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
}

/// Loads accumulators into tiles 0 to 3: two groups' rows at `s0` and `s1` with the given byte stride, and
/// the second panel of each at the given byte offset.
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

/// Stores the sums.
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

/// Multiplies tiles 4 and 5 with tiles 6 and 7 and adds to the accumulators.
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

/// Implements [`super::AmxIsa::add_products`].
///
/// # Safety
/// The tile configuration is loaded for the groups' tokens; memory is valid as [`ProductRun`] requires.
#[inline(always)]
pub(super) unsafe fn add_products<const G: usize, const P: usize, const X: usize, const W: usize>(
    run: &ProductRun,
) {
    // SAFETY: reads and writes what the caller guarantees; all registers that change are named.
    unsafe {
        asm!(
            "test {adds:e}, {adds:e}",
            "jz 3f",
            load_sums!("{line}", "1024"),
            "jmp 2f",
            "3:",
            "tilezero tmm0; tilezero tmm1; tilezero tmm2; tilezero tmm3",
            "2:",
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
            "add {x0}, {x_step}; add {x1}, {x_step}; add {w0}, {w_step}; add {w1}, {w_step}",
            "dec {n_blocks}",
            "jnz 2b",
            store_sums!("{line}", "1024"),
            x0 = inout(reg) run.x[0] => _,
            x1 = inout(reg) run.x[1] => _,
            w0 = inout(reg) run.w[0] => _,
            w1 = inout(reg) run.w[1] => _,
            x_step = in(reg) run.x_step,
            w_step = in(reg) run.w_step,
            n_blocks = inout(reg) run.n_blocks => _,
            s0 = in(reg) run.sums[0],
            s1 = in(reg) run.sums[1],
            adds = in(reg) u32::from(run.adds),
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
            options(nostack),
        );
    }
}

/// Implements [`super::AmxIsa::key_dots`].
///
/// # Safety
/// The tile configuration is loaded for the groups' query heads; memory is valid as [`KeyRun`] requires.
#[inline(always)]
pub(super) unsafe fn key_dots<const G: usize, const P: usize>(run: &KeyRun) {
    // SAFETY: reads and writes what the caller guarantees; all registers that change are named.
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

/// Implements [`super::AmxIsa::value_dots`].
///
/// # Safety
/// The tile configuration is loaded for the groups' query heads and blocks of sixteen tokens; memory is valid
/// as [`ValueRun`] requires.
#[inline(always)]
pub(super) unsafe fn value_dots<const G: usize>(run: &ValueRun) {
    // SAFETY: reads and writes what the caller guarantees; all registers that change are named.
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
