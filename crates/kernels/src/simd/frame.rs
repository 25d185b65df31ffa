//! Alignment of the stack frame for spilled vectors.

use std::arch::asm;
use std::arch::x86_64::__m512;
use std::mem::MaybeUninit;

/// Aligns the caller's stack frame to the vector size by placing an over-aligned variable in it. Otherwise
/// spilled vectors may straddle cache lines and pages: one accumulator spilled across two pages cost a
/// register tile a tenth of its time.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block, reason = "nothing is read or written")]
pub(super) fn align_frame() {
    let aligned = MaybeUninit::<__m512>::uninit();
    // SAFETY: empty assembly; taking the address keeps the variable in the frame.
    unsafe { asm!("/* {0} */", in(reg) aligned.as_ptr(), options(nomem, nostack, preserves_flags)) };
}
