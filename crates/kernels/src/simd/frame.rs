//! Where vectors lie that registers have no room for. Refuses to know what they hold.

use std::arch::asm;
use std::arch::x86_64::__m512;
use std::mem::MaybeUninit;

/// Aligns the caller's frame to vectors, by something in it that wants to be. Otherwise the compiler puts what it spills
/// wherever the stack happens to stand: a spilled sum across two pages cost a tile a tenth of its time.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block, reason = "nothing is read or written")]
pub(super) fn align_frame() {
    let aligned = MaybeUninit::<__m512>::uninit();
    // SAFETY: it does nothing; that it could look at an address keeps what is there in the frame.
    unsafe { asm!("/* {0} */", in(reg) aligned.as_ptr(), options(nomem, nostack, preserves_flags)) };
}
