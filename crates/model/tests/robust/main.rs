//! Weight files that are cut, flipped or crafted: each gives a typed error or a faithful load, never a panic and
//! never a large allocation.

mod crafted_gguf;
mod crafted_safetensors;
mod damaged;

use std::alloc::System;
use std::sync::Mutex;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The allocator counts for all threads, so one test reads at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs `read` over `n_file_bytes` of file and asserts that all its allocations together stay within twice the
/// file and a little: nothing was allocated because a file claimed to be large.
fn within_bounds<T>(n_file_bytes: usize, read: impl FnOnce() -> T) -> T {
    const SLACK_BYTES: usize = 64 << 10;
    let region = Region::new(ALLOCATOR);
    let result = read();
    let n_allocated = region.change().bytes_allocated;
    assert!(
        n_allocated <= 2 * n_file_bytes + SLACK_BYTES,
        "{n_allocated} bytes allocated for a file of {n_file_bytes}"
    );
    result
}

fn one_at_a_time() -> impl Drop {
    ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
