//! Measures read bandwidth over a buffer. Does not know which cache it fits.

use std::sync::atomic::{AtomicU32, Ordering};

use throng_os::memory::{AlignedBytes, Pages};

use crate::disjoint::Disjoint;
use crate::simd::{CheckedKernel, Kernel, SimdIsa};
use crate::threads::ThreadPool;

/// Bytes that a thread reads in one turn of its loop; parts are multiples of it.
const TURN: usize = 256;
/// Size from which on the kind of pages is requested explicitly.
const LEAST_MAPPED: usize = 4 << 20;

/// Touched memory (each part is written by the thread that reads it), one part for each thread.
#[derive(Debug)]
pub struct ReadBuffer {
    bytes: AlignedBytes,
    part: usize,
    n_parts: usize,
}

impl ReadBuffer {
    /// A buffer of about `n_bytes`; `None` when it cannot be allocated.
    pub fn new(n_bytes: usize, pages: Pages, pool: &ThreadPool) -> Option<Self> {
        let n_parts = pool.n_threads();
        let part = (n_bytes / n_parts).checked_next_multiple_of(TURN)?.max(TURN);
        let mut bytes = AlignedBytes::zeroed(part.checked_mul(n_parts)?.max(LEAST_MAPPED), pages)?;
        let parts = Disjoint::new(bytes.as_mut_slice());
        pool.run(|i| {
            // SAFETY: each thread has a part of its own.
            let part = unsafe { parts.part(i * part, part) };
            part.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 31 + i) as u8);
        });
        Some(Self { bytes, part, n_parts })
    }

    /// Bytes of a round.
    pub fn n_bytes(&self) -> usize {
        self.part * self.n_parts
    }

    /// Reads everything `n_rounds` times, each thread of the pool its own part. Returns the wrapping sum of
    /// all 32-bit little-endian words.
    ///
    /// # Panics
    /// When the pool has another number of threads than the one the buffer was made with.
    pub fn read(&self, n_rounds: u64, pool: &ThreadPool) -> u32 {
        assert_eq!(pool.n_threads(), self.n_parts, "threads of the pool");
        let total = AtomicU32::new(0);
        pool.run(|i| {
            let bytes = &self.bytes.as_slice()[i * self.part..][..self.part];
            let mut sum = 0u32;
            for _ in 0..n_rounds {
                let pass = Pass { bytes: std::hint::black_box(bytes) };
                sum = sum.wrapping_add(pool.isa().run_checked(pass));
            }
            total.fetch_add(sum, Ordering::Relaxed);
        });
        total.into_inner()
    }
}

/// A pass over whole turns of bytes.
struct Pass<'a> {
    bytes: &'a [u8],
}

// SAFETY: slices only, and their lengths are checked.
unsafe impl CheckedKernel for Pass<'_> {}

impl Kernel for Pass<'_> {
    type Output = u32;

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) -> u32 {
        let mut lanes = [0i32; 16];
        // SAFETY: all loads are inside a turn; prefetches need no memory; the caller guarantees the features.
        unsafe {
            let mut sums = [S::isplat(0); 4];
            for turn in self.bytes.chunks_exact(TURN) {
                for (i, sum) in sums.iter_mut().enumerate() {
                    let line = turn.as_ptr().add(i * 64);
                    S::prefetch(line.wrapping_add(2048));
                    *sum = S::iadd(*sum, S::iload(line.cast()));
                }
            }
            let sum = S::iadd(S::iadd(sums[0], sums[1]), S::iadd(sums[2], sums[3]));
            S::istore(lanes.as_mut_ptr(), sum);
        }
        lanes.into_iter().fold(0, |sum: u32, lane| sum.wrapping_add(lane as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Isa;

    #[test]
    fn a_round_reads_every_byte_once_on_every_lane() {
        for isa in Isa::available() {
            for (n_threads, n_bytes) in [(1, 1), (1, 1 << 16), (3, 100_000), (2, 5 << 20)] {
                let pool = ThreadPool::with_isa(n_threads, isa);
                for pages in [Pages::Huge, Pages::Small] {
                    let buffer = ReadBuffer::new(n_bytes, pages, &pool).expect("fits");
                    assert!(
                        buffer.n_bytes() >= n_bytes && buffer.n_bytes() < n_bytes + n_threads * (TURN + 1)
                    );
                    let bytes = &buffer.bytes.as_slice()[..buffer.n_bytes()];
                    let words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
                    let expected = words.fold(0u32, |sum, word| sum.wrapping_add(word));
                    assert_ne!(expected, 0);
                    assert_eq!(buffer.read(1, &pool), expected, "{} threads, {}", n_threads, isa.name());
                    assert_eq!(buffer.read(3, &pool), expected.wrapping_mul(3));
                }
            }
        }
    }
}
