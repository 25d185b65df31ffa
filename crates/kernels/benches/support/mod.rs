//! Timing of the benchmarks.

/// Seconds of processor time that this thread has used.
fn now() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the struct it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// The median of five runs, after one to warm up, in seconds.
pub fn median(mut run: impl FnMut()) -> f64 {
    run();
    let mut seconds: Vec<f64> = (0..5)
        .map(|_| {
            let start = now();
            run();
            now() - start
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[2]
}
