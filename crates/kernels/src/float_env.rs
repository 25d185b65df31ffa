//! Flush-to-zero on every kernel thread: subnormals would slow tiny products down by a factor of three, and a row's bits must not depend
//! on the thread that computed it.
//!
//! The compiler assumes the default floating-point environment; it never relies on subnormals surviving, and the
//! guard puts the caller's setting back.

/// While it lives, this thread's arithmetic flushes subnormal results to zero and reads subnormal operands as zero.
pub(crate) struct FlushToZero {
    previous: u64,
    /// The setting belongs to this thread.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl FlushToZero {
    pub(crate) fn new() -> Self {
        let previous = read();
        let wanted = previous | FLUSH;
        if wanted != previous {
            write(wanted);
        }
        Self { previous, _not_send: std::marker::PhantomData }
    }
}

impl Drop for FlushToZero {
    fn drop(&mut self) {
        if self.previous | FLUSH != self.previous {
            write(self.previous);
        }
    }
}

/// MXCSR: flush-to-zero (bit 15), denormals-are-zero (bit 6).
#[cfg(target_arch = "x86_64")]
const FLUSH: u64 = 1 << 15 | 1 << 6;
/// FPCR: FZ (bit 24).
#[cfg(target_arch = "aarch64")]
const FLUSH: u64 = 1 << 24;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const FLUSH: u64 = 0;

#[cfg(target_arch = "x86_64")]
fn read() -> u64 {
    let mut csr = 0u32;
    // SAFETY: stores the 32-bit control register to a local.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut csr, options(nostack, preserves_flags)) };
    u64::from(csr)
}

#[cfg(target_arch = "x86_64")]
fn write(value: u64) {
    let csr = value as u32;
    // SAFETY: `csr` is the register's own earlier value with the two flush bits changed.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &csr, options(nostack, preserves_flags)) };
}

#[cfg(target_arch = "aarch64")]
fn read() -> u64 {
    let value: u64;
    // SAFETY: reads a control register.
    unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) value, options(nomem, nostack)) };
    value
}

#[cfg(target_arch = "aarch64")]
fn write(value: u64) {
    // SAFETY: `value` is the register's own earlier value with the flush bit changed.
    unsafe { std::arch::asm!("msr fpcr, {}", in(reg) value, options(nomem, nostack)) };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn read() -> u64 {
    0
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn write(_value: u64) {}
