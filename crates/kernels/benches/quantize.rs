//! Speed of quantizing rows of BF16 on one thread, by format: GB of BF16 a second.
//!
//! Times are of the thread's processor time. `cargo bench -p throng-kernels --bench quantize`

use std::hint::black_box;

use throng_kernels::Isa;
use throng_kernels::quant::{Format, quantize_row, quantize_rows};

const COLS: usize = 1024;
const ROWS: usize = 1024;

/// Seconds of processor time that this thread has used.
fn now() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the struct it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// The median of five runs, in seconds.
fn median(mut run: impl FnMut()) -> f64 {
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

fn main() {
    let mut state = 1u64;
    let x: Vec<f32> = (0..ROWS * COLS)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (0..4).map(|i| (state >> (16 * i) & 0xFFFF) as f32 / 65_536.0 - 0.5).sum::<f32>() * 0.02
        })
        .collect();
    let mut stored = vec![0; 2 * x.len()];
    quantize_row(Format::BF16, &x, &mut stored);
    for format in [Format::Q8_0, Format::Q4_0, Format::Q5_0, Format::Q4_K, Format::Q6_K] {
        let mut out = vec![0; format.bytes_of(x.len()).expect("whole blocks")];
        let seconds =
            median(|| quantize_rows(Isa::best(), Format::BF16, format, COLS, black_box(&stored), &mut out));
        println!("{:5} {:5.2} GB/s", format.name(), stored.len() as f64 / seconds / 1e9);
    }
}
