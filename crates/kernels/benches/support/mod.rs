//! Timing of the benchmarks.

/// Seconds of processor time that this thread has used.
fn now() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
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
