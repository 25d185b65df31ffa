//! Register tile of eight tokens times two panels on AVX-512 VNNI, in assembly: sixteen accumulators in
//! registers, each broadcast of activations used twice. With intrinsics the compiler hoists the broadcasts
//! into registers and spills.

use std::arch::asm;

use super::PairBlock;
use crate::layout::SCALE_AT;

/// Implements [`super::SimdIsa::pair_tile`].
///
/// # Safety
/// AVX-512 F, BW and VNNI must be available and all pointers valid for a block of eight tokens and two
/// panels.
#[inline(always)]
pub(super) unsafe fn pair_tile<
    const VECTORS: usize,
    const PAIRS: usize,
    const SUMS: usize,
    const MIN: bool,
>(
    block: PairBlock,
) {
    // zmm10..17 and zmm20..27 are the dots of the two panels.
    // SAFETY: reads and writes what the caller guarantees; all registers that change are named.
    unsafe {
        asm!(
            ".irp t,0,1,2,3,4,5,6,7",
            "vpxord zmm1\\t, zmm1\\t, zmm1\\t; vpxord zmm2\\t, zmm2\\t, zmm2\\t",
            ".endr",
            ".irp v,0,1,2,3,4,5,6,7",
            ".if \\v < {vectors}",
            "vmovdqu64 zmm0, [{codes0} + \\v*64]; vmovdqu64 zmm1, [{codes1} + \\v*64]",
            ".irp t,0,1,2,3,4,5,6,7",
            "vpbroadcastd zmm2, dword ptr [{x} + \\t*32 + \\v*4]",
            "vpdpbusd zmm1\\t, zmm0, zmm2; vpdpbusd zmm2\\t, zmm1, zmm2",
            ".endr",
            ".endif",
            ".endr",
            "vmovdqu64 zmm0, [{sums0}]; vmovdqu64 zmm1, [{sums1}]",
            "vmovups zmm2, [{scales0}]; vmovups zmm3, [{scales1}]",
            ".if {min}",
            "vmovups zmm4, [{mins0}]; vmovups zmm5, [{mins1}]",
            ".endif",
            ".irp t,0,1,2,3,4,5,6,7",
            // zero · Σ weights - offset · Σ codes, exactly; then as `Scales::add` does.
            "vpbroadcastd zmm8, dword ptr [{record} + {pairs} + \\t*4]",
            "vpdpwssd zmm1\\t, zmm0, zmm8; vpdpwssd zmm2\\t, zmm1, zmm8",
            "vbroadcastss zmm9, dword ptr [{record} + {scale} + \\t*4]",
            "vmulps zmm6, zmm2, zmm9; vmulps zmm7, zmm3, zmm9",
            "vcvtdq2ps zmm1\\t, zmm1\\t; vcvtdq2ps zmm2\\t, zmm2\\t",
            "vfmadd213ps zmm1\\t, zmm6, [{acc0} + \\t*64]; vfmadd213ps zmm2\\t, zmm7, [{acc1} + \\t*64]",
            ".if {min}",
            "vbroadcastss zmm8, dword ptr [{record} + {token_sums} + \\t*4]",
            "vfmadd231ps zmm1\\t, zmm4, zmm8; vfmadd231ps zmm2\\t, zmm5, zmm8",
            ".endif",
            "vmovups [{acc0} + \\t*64], zmm1\\t; vmovups [{acc1} + \\t*64], zmm2\\t",
            ".endr",
            x = in(reg) block.x,
            record = in(reg) block.record,
            codes0 = in(reg) block.codes[0],
            codes1 = in(reg) block.codes[1],
            sums0 = in(reg) block.sums[0],
            sums1 = in(reg) block.sums[1],
            scales0 = in(reg) block.scales[0],
            scales1 = in(reg) block.scales[1],
            mins0 = in(reg) block.mins[0],
            mins1 = in(reg) block.mins[1],
            acc0 = in(reg) block.acc[0],
            acc1 = in(reg) block.acc[1],
            vectors = const VECTORS,
            scale = const SCALE_AT,
            pairs = const PAIRS,
            token_sums = const SUMS,
            min = const MIN as usize,
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _, out("zmm6") _,
            out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _, out("zmm12") _,
            out("zmm13") _, out("zmm14") _, out("zmm15") _, out("zmm16") _, out("zmm17") _, out("zmm20") _,
            out("zmm21") _, out("zmm22") _, out("zmm23") _, out("zmm24") _, out("zmm25") _, out("zmm26") _,
            out("zmm27") _,
            options(nostack, preserves_flags),
        );
    }
}
