//! Weight files that are truncated, have flipped bits or are malicious: each gives a typed error or loads
//! exactly its content, without a panic or a large allocation.

mod crafted_gguf;
mod crafted_safetensors;
mod damaged;
mod damaged_checkpoints;

use allocation_counter::measure;

/// Runs `read` on a file of `n_file_bytes` and asserts that all its allocations together are at most three
/// times the file and a constant: a copy of the header, what is read of it, and nothing by sizes that a file
/// only claims.
fn within_bounds<T>(n_file_bytes: usize, read: impl FnOnce() -> T) -> T {
    const SLACK_BYTES: usize = 64 << 10;
    let mut result = None;
    let allocated = measure(|| result = Some(read()));
    assert!(
        allocated.bytes_total <= (3 * n_file_bytes + SLACK_BYTES) as u64,
        "{} bytes allocated for a file of {n_file_bytes}",
        allocated.bytes_total
    );
    result.expect("it ran")
}
