//! What this machine can do at most: bytes that it reads in a second, and multiplications and additions in a second
//! that never leave the registers. Refuses to know what work is measured against them.
//!
//! A limit is the fastest of several passes: whatever else the machine does can only slow a pass down.

mod read;
mod registers;

use std::hint::black_box;
use std::time::{Duration, Instant};

pub use crate::memory::Pages;
pub use read::ReadBuffer;
pub use registers::{Arithmetic, RegisterLoop};

use crate::threads::ThreadPool;

/// Passes of which the fastest counts.
const N_PASSES: usize = 5;
/// A pass takes at least so long that starting the threads is nothing beside it.
const PASS: Duration = Duration::from_millis(20);

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

/// Rounds a second, in units of `amount` a round, of passes of so many rounds.
fn fastest(amount: f64, pass: impl Fn(u64)) -> f64 {
    let time = |n_rounds| {
        let start = Instant::now();
        pass(n_rounds);
        start.elapsed()
    };
    let mut n_rounds = 1;
    while time(n_rounds) < PASS && n_rounds < u64::from(u32::MAX) {
        n_rounds *= 2;
    }
    let times = (0..N_PASSES).map(|_| time(n_rounds).as_secs_f64());
    amount * n_rounds as f64 / times.fold(f64::INFINITY, f64::min)
}
