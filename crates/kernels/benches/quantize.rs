//! Speed of quantizing rows of BF16 on one thread, by format: GB of BF16 a second.
//!
//! Times are the thread's processor time. `cargo bench -p throng-kernels --bench quantize`

mod support;

use std::hint::black_box;

use support::median;
use throng_kernels::Isa;
use throng_kernels::quant::{Format, quantize_row, quantize_rows};

const COLS: usize = 1024;
const ROWS: usize = 1024;

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
