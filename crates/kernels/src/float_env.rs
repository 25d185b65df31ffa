//! Flush-to-zero on every kernel thread: subnormals would slow tiny products down by a factor of three, and a
//! row's bits must not depend on the thread that computed it.
//!
//! This deviates from the rules of `std::arch`: the compiler assumes the default environment outside
//! assembly. Under that assumption it may compute constant expressions in the default environment and move
//! arithmetic out of the guard's life. Both change at most whether a result is subnormal or zero, so no
//! result becomes undefined, and the kernels' tests compare bits between threads and ISAs in optimized code.
//! Setting the register inside the assembly that needs it is no alternative, since kernels are intrinsics.

/// While this value exists, this thread's arithmetic flushes subnormal results to zero and reads subnormal
/// operands as zero.
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

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    /// Checks that this crate is optimized in tests as in releases.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn subnormals_are_flushed_while_a_guard_lives_and_only_then() {
        let half = || black_box(black_box(f32::MIN_POSITIVE) * black_box(0.5));
        assert!(half() > 0.0);
        let outer = FlushToZero::new();
        assert_eq!(half(), 0.0);
        drop(FlushToZero::new());
        assert_eq!(half(), 0.0);
        drop(outer);
        assert!(half() > 0.0);
    }
}
