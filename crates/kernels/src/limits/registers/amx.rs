//! The loop of AMX tiles. Does not know its speed.

use std::arch::asm;

use super::RegisterLoop;
use crate::simd::{Isa, TileConfig};

/// Number of columns of the left tile and rows of the right one.
const PAIRS: usize = 16;
/// Number of tiles of sums: one waits 52 cycles for the next, and takes the unit for sixteen.
const SUMS: usize = 6;

/// Register layout of a machine that has tiles of bf16.
pub(super) fn available() -> Option<RegisterLoop> {
    let is_there = Isa::best().has_tiles();
    let products = RegisterLoop { name: "AMX BF16", n_elements: 256, n_products: SUMS * 2 * PAIRS, run };
    is_there.then_some(products)
}

/// # Safety
/// The machine has an ISA with tiles.
unsafe fn run(n_rounds: u64) -> f64 {
    /// The number 1 in bf16, twice.
    const ONES: u32 = 0x3F80_3F80;
    let ones = [ONES; 16 * PAIRS];
    let mut sums = [[0.0f32; 256]; SUMS];
    let tiles = TileConfig::default();
    // SAFETY: the machine has tiles, by the caller, and they have their shape; whole tiles are read and written, and all
    // registers that change are named.
    unsafe {
        tiles.shape(16, PAIRS);
        asm!(
            "tilezero tmm0; tilezero tmm1; tilezero tmm2; tilezero tmm3; tilezero tmm4; tilezero tmm5",
            "tileloadd tmm6, [{ones} + {line}*1]",
            "tileloadd tmm7, [{ones} + {line}*1]",
            "2:",
            ".irp i,0,1,2,3,4,5; tdpbf16ps tmm\\i, tmm6, tmm7; .endr",
            "dec {n}",
            "jnz 2b",
            ".irp i,0,1,2,3,4,5; tilestored [{sums} + {line}*1 + \\i*1024], tmm\\i; .endr",
            ones = in(reg) ones.as_ptr(),
            sums = in(reg) sums.as_mut_ptr(),
            line = in(reg) 64usize,
            n = inout(reg) n_rounds => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
            out("tmm7") _,
            options(nostack),
        );
    }
    sums.iter().map(|sums| f64::from(sums[0])).sum()
}
