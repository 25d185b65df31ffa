//! Measures the machine's peak rates: memory reads per second, and multiply-adds per second in registers.
//! Does not know the programs that are compared with them.
//!
//! A limit is the fastest of several passes: other load can only slow a pass down.

mod read;
mod registers;

use std::hint::black_box;
use std::time::{Duration, Instant};

pub use read::ReadBuffer;
pub use registers::{Arithmetic, RegisterLoop};
pub use throng_os::memory::Pages;

use crate::threads::ThreadPool;

/// Minimum duration of a pass, so that starting the threads does not count. Not much longer, since a short
/// pass is more likely to run undisturbed.
const PASS: Duration = Duration::from_millis(3);
/// Passes are repeated for this long, and at least this often.
const ALL_PASSES: Duration = Duration::from_millis(150);
const LEAST_PASSES: usize = 5;

/// Operations a second on all threads of the pool, a multiplication and an addition counting as two.
pub fn operations_per_second(work: &RegisterLoop, pool: &ThreadPool) -> f64 {
    let round = work.operations() * pool.n_threads() as f64;
    fastest(round, |n_rounds| {
        pool.run(|_| {
            black_box(work.run(n_rounds));
        });
    })
}

/// Bytes a second that all threads of the pool read together, each its own part of the buffer, over and over.
pub fn bytes_per_second(buffer: &ReadBuffer, pool: &ThreadPool) -> f64 {
    fastest(buffer.n_bytes() as f64, |n_rounds| {
        black_box(buffer.read(n_rounds, pool));
    })
}

/// The most rounds a second, in units of `amount` a round.
fn fastest(amount: f64, pass: impl Fn(u64)) -> f64 {
    let started = Instant::now();
    let (mut n_rounds, mut n_passes, mut fastest) = (1, 0, Duration::MAX);
    while n_passes < LEAST_PASSES || started.elapsed() < ALL_PASSES {
        let start = Instant::now();
        pass(n_rounds);
        let took = start.elapsed();
        if took < PASS && n_rounds < u64::from(u32::MAX) {
            // Earlier passes were as short and only appeared long enough because they were disturbed.
            (n_rounds, n_passes, fastest) = (2 * n_rounds, 0, Duration::MAX);
            continue;
        }
        (n_passes, fastest) = (n_passes + 1, fastest.min(took));
    }
    amount * n_rounds as f64 / fastest.as_secs_f64()
}
