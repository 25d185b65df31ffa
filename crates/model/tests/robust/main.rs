//! Weight files that are cut, flipped or crafted: each gives a typed error or a faithful load, never a panic and
//! never a large allocation.

mod crafted_gguf;
mod crafted_safetensors;
mod damaged;

use allocation_counter::measure;

/// Runs `read` over `n_file_bytes` of file and asserts that all its allocations together stay within twice the
/// file and a little: nothing was allocated because a file claimed to be large.
fn within_bounds<T>(n_file_bytes: usize, read: impl FnOnce() -> T) -> T {
    const SLACK_BYTES: usize = 64 << 10;
    let mut result = None;
    let allocated = measure(|| result = Some(read()));
    assert!(
        allocated.bytes_total <= (2 * n_file_bytes + SLACK_BYTES) as u64,
        "{} bytes allocated for a file of {n_file_bytes}",
        allocated.bytes_total
    );
    result.expect("it ran")
}
