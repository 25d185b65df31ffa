//! The tile registers of AMX, whose state Linux saves only for processes that request it.

/// Requests the tile state from the system (`ARCH_REQ_XCOMP_PERM`), for all threads of this process. Returns
/// whether it is granted; where it is not, the first instruction on tiles ends the process.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub fn request() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Refuses: only Linux on x86-64 is known to grant them.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub fn request() -> bool {
    false
}
