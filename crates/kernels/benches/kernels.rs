//! Speed of the products per ISA and format on one thread, each beside its share of the limit measured in the
//! same run: int8 dot products a second for many tokens, bytes read a second for few.
//!
//! Times are the thread's processor time, so that other programs on the machine disturb less. `cargo bench -p
//! throng-kernels --bench kernels [-- FORMAT]`

mod support;

use std::hint::black_box;

use support::median;
use throng_kernels::Isa;
use throng_kernels::limits::{Arithmetic, Pages, ReadBuffer, RegisterLoop};
use throng_kernels::matmul::{Activations, Forms, Product, matmul};
use throng_kernels::quant::{Format, PackedMatrix};
use throng_kernels::threads::ThreadPool;

/// 10⁹ int8 operations a second in registers.
fn int8_peak() -> f64 {
    const N: u64 = 10_000_000;
    let peak = RegisterLoop::best(Arithmetic::Int8);
    let seconds = median(|| {
        black_box(peak.run(N));
    });
    peak.operations() * N as f64 / seconds / 1e9
}

/// GB a second read from memory that is not in a cache.
fn read_bandwidth(pool: &ThreadPool) -> f64 {
    let buffer = ReadBuffer::new(1 << 30, Pages::Huge, pool).expect("fits");
    let seconds = median(|| {
        black_box(buffer.read(1, pool));
    });
    buffer.n_bytes() as f64 / seconds / 1e9
}

/// A large matrix, and the GB a second at which it was packed.
fn packed(format: Format, rows: usize, cols: usize, pool: &ThreadPool) -> (PackedMatrix, f64) {
    let stored = stored(format, rows, cols);
    let pack = || PackedMatrix::pack(format, rows, cols, &stored, pool).expect("fits");
    let seconds = median(|| {
        black_box(pack());
    });
    (pack(), stored.len() as f64 / seconds / 1e9)
}

fn weights(format: Format, rows: usize, cols: usize, pool: &ThreadPool) -> PackedMatrix {
    PackedMatrix::pack(format, rows, cols, &stored(format, rows, cols), pool).expect("fits")
}

/// Random bytes whose scales are ordinary numbers; speed does not depend on the values.
fn stored(format: Format, rows: usize, cols: usize) -> Vec<u8> {
    vec![0x2C; format.bytes_of(rows * cols).expect("whole blocks")]
}

/// Seconds of one product of `n` tokens, including the rounding of their activations.
fn product(w: &PackedMatrix, n: usize, pool: &ThreadPool) -> f64 {
    let x: Vec<f32> = (0..n * w.cols()).map(|i| (i % 61) as f32 - 30.0).collect();
    let mut out = vec![0.0; n * w.rows()];
    let mut rows = Activations::default();
    median(|| {
        rows.set(&x, w.cols(), Forms::of(w.format()), pool);
        matmul(&[Product::new(&rows, w)], &mut out, w.rows(), pool);
    })
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let (peak, bandwidth) = (int8_peak(), read_bandwidth(&ThreadPool::new(1)));
    let name = RegisterLoop::best(Arithmetic::Int8).name();
    println!("limits of one thread: {peak:.0} GOP/s int8 ({name}), {bandwidth:.1} GB/s read");
    for isa in Isa::available().into_iter().rev() {
        let pool = ThreadPool::with_isa(1, isa);
        let formats =
            Format::ALL.into_iter().filter(|f| wanted.is_empty() || wanted.iter().any(|w| w == f.name()));
        for format in formats {
            let seconds = product(&weights(format, 1024, 1024, &pool), 240, &pool);
            let gops = 2.0 * 240.0 * 1024.0 * 1024.0 / seconds / 1e9;
            let share = 100.0 * gops / peak;
            print!("{:13} {:7} 240 tokens {gops:6.0} GOP/s ({share:3.0} %)", isa.name(), format.name());
            let (large, packing) = packed(format, 49152, 1024, &pool);
            let alone = product(&large, 1, &pool);
            let rate = large.n_bytes() as f64 / alone / 1e9;
            print!("  1 token {rate:5.1} GB/s ({:3.0} %)", 100.0 * rate / bandwidth);
            for n in [4, 16] {
                print!("  {n} tokens {:.2}x", product(&large, n, &pool) / alone);
            }
            println!("  packed at {packing:.1} GB/s");
        }
    }
}
