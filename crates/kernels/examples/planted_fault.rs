//! Faults that sanitizers must find, one by name, after work on threads without any: `cargo xtask test
//! --sanitizers` runs this program first, since a sanitizer that finds nothing here proves nothing elsewhere.
//! Not run otherwise.

use throng_kernels::matmul::{Activations, Forms, Product, matmul};
use throng_kernels::quant::{Format, PackedMatrix, quantize_row};
use throng_kernels::threads::ThreadPool;
use throng_os::memory::{AlignedBytes, Pages};

/// A pointer that threads share.
struct Shared(*mut f32);

// SAFETY: none; the faults are what this program is for.
unsafe impl Sync for Shared {}

impl Shared {
    /// Writes an element as a kernel does, through a pointer.
    fn write(&self, at: usize, element: f32) {
        // SAFETY: not given where `at` is beyond the buffer, or where another thread writes the same element.
        unsafe { self.0.wrapping_add(at).write_volatile(element) };
    }
}

/// Products with a quantized matrix and rounds of small items, between which workers spin and sleep.
fn work(pool: &ThreadPool) {
    let (n_rows, cols) = (80, 256);
    let numbers = |n: usize| -> Vec<f32> { (0..n).map(|i| (i * 7919 % 1013) as f32 / 512.0 - 1.0).collect() };
    let mut stored = vec![0; Format::Q8_0.bytes_of(n_rows * cols).expect("whole blocks")];
    quantize_row(Format::Q8_0, &numbers(n_rows * cols), &mut stored);
    let weights = PackedMatrix::pack(Format::Q8_0, n_rows, cols, &stored, pool).expect("fits");
    for n_tokens in [1, 2, 17, 40] {
        let mut rows = Activations::default();
        rows.set(&numbers(n_tokens * cols), cols, Forms::of(Format::Q8_0), pool);
        let mut out = vec![0.0; n_tokens * n_rows];
        matmul(&[Product::new(&rows, &weights)], &mut out, n_rows, pool);
        std::hint::black_box(out);
    }
    for round in 0..2000 {
        let mut items = vec![0.0f32; 64];
        let shared = Shared(items.as_mut_ptr());
        pool.for_each(items.len(), |i| shared.write(i, i as f32));
        std::hint::black_box(items);
        if round % 500 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

fn main() {
    let fault = std::env::args().nth(1).unwrap_or_default();
    let pool = ThreadPool::new(2);
    work(&pool);
    let mut bytes = AlignedBytes::zeroed(128, Pages::Small).expect("little memory");
    let part = bytes.as_slice().len() / size_of::<f32>() / pool.n_threads();
    let shared = Shared(bytes.as_mut_slice().as_mut_ptr().cast());
    pool.run(|worker_idx| {
        let first = match fault.as_str() {
            // Each thread has a part of its own.
            "none" => worker_idx * part,
            // The parts overlap: all threads have the first one.
            "race" => 0,
            // The last part ends beyond the buffer.
            "overflow" => worker_idx * part + 1,
            _ => panic!("usage: planted_fault none|race|overflow"),
        };
        (first..first + part).for_each(|at| shared.write(at, worker_idx as f32));
    });
    std::hint::black_box(bytes.as_slice());
}
