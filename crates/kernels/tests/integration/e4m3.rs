//! Matrices in E4M3 with scales: products have the bits of products with the same numbers in panels of F32,
//! and in panels of BF16 where those have the numbers exactly, on every ISA and for any number of tokens.

use crate::support::{Random, bits};
use throng_kernels::Isa;
use throng_kernels::matmul::{Activations, Forms, Gated, Product, matmul};
use throng_kernels::quant::{Format, PackedMatrix, dequantize_row};
use throng_kernels::rows::Activation;
use throng_kernels::threads::ThreadPool;

/// Stored rows with every code but those of NaN, and scales of many sizes; of MXFP8 as of FP8.
fn stored(format: Format, random: &mut Random, n: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..n / format.block_elements() {
        match format {
            Format::FP8 => {
                let scale = random.normal() * 2.0f32.powi(random.below(60) as i32 - 40);
                bytes.extend(if random.below(20) == 0 { 0.0f32 } else { scale }.to_le_bytes());
            }
            _ => bytes.push(random.below(60) as u8 + 87),
        }
        let code = |random: &mut Random| loop {
            let code = random.below(256) as u8;
            if code & 0x7F != 0x7F {
                return code;
            }
        };
        bytes.extend((0..format.block_elements()).map(|_| code(random)));
    }
    bytes
}

/// The same numbers in a format of floats that has them exactly.
fn expanded(format: Format, stored: &[u8], to: Format) -> Vec<u8> {
    let mut numbers = vec![0.0; stored.len() / format.block_bytes() * format.block_elements()];
    dequantize_row(format, stored, &mut numbers);
    match to {
        Format::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
        _ => {
            assert!(numbers.iter().all(|x| x.to_bits() & 0xFFFF == 0), "exact in BF16");
            numbers.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect()
        }
    }
}

/// What a matrix is replaced by on an ISA.
fn replaced(format: Format, isa: Isa) -> &'static [Format] {
    match format {
        Format::FP8 => &[Format::F32],
        _ if isa.has_tiles() => &[Format::BF16],
        _ => &[Format::F32, Format::BF16],
    }
}

fn multiply(x: &[f32], w: &PackedMatrix, pool: &ThreadPool) -> Vec<u32> {
    let mut rows = Activations::default();
    rows.set(x, w.cols(), Forms::of(w.format()), pool);
    let mut out = vec![f32::NAN; rows.n_rows() * w.rows()];
    matmul(&[Product::new(&rows, w)], &mut out, w.rows(), pool);
    // Again, added to what is there, with a bias.
    let bias: Vec<f32> = (0..w.rows()).map(|row| row as f32).collect();
    let product = Product { adds: true, bias: Some(&bias), ..Product::new(&rows, w) };
    matmul(&[product], &mut out, w.rows(), pool);
    bits(&out)
}

fn gated(x: &[f32], gate: &PackedMatrix, up: &PackedMatrix, pool: &ThreadPool) -> Vec<u32> {
    let mut rows = Activations::default();
    rows.set(x, gate.cols(), Forms::of(gate.format()).and(Forms::of(up.format())), pool);
    let mut out = vec![f32::NAN; rows.n_rows() * gate.rows()];
    let gated = Gated { up, up_bias: None, function: Activation::Silu };
    matmul(&[Product { gated: Some(gated), ..Product::new(&rows, gate) }], &mut out, gate.rows(), pool);
    bits(&out)
}

#[test]
fn products_have_the_bits_of_expanded_panels() {
    let mut random = Random(31);
    let (k, m) = (1152, 75);
    for format in [Format::FP8, Format::MXFP8] {
        let x = random.normals(70 * k);
        let weights = [0, 1].map(|_| stored(format, &mut random, m * k));
        for isa in Isa::available() {
            let pool = ThreadPool::with_isa(2, isa);
            let pack = |format, bytes: &[u8]| PackedMatrix::pack(format, m, k, bytes, &pool).expect("fits");
            let short = weights.each_ref().map(|bytes| pack(format, bytes));
            for &to in replaced(format, isa) {
                let long = weights.each_ref().map(|bytes| pack(to, &expanded(format, bytes, to)));
                assert!(short[0].n_bytes() * 3 < long[0].n_bytes() * 2, "less memory");
                for n in [1, 2, 3, 4, 5, 8, 13, 16, 17, 33, 70] {
                    let x = &x[..n * k];
                    let what = format!("{} as {}, {n} tokens, {}", format.name(), to.name(), isa.name());
                    let found = multiply(x, &short[0], &pool);
                    assert!(found == multiply(x, &long[0], &pool), "{what}, seed 31");
                    // Rows that are all zero, or NaN, would be equal too.
                    assert!(found.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{what}");
                    let found = gated(x, &short[0], &short[1], &pool);
                    assert!(found == gated(x, &long[0], &long[1], &pool), "{what}, gated, seed 31");
                }
            }
        }
    }
}

/// Whatever the bytes, panels have the numbers that the stored rows have: codes of NaN, infinite and tiny
/// scales too.
#[test]
fn any_bytes_are_the_same_numbers_in_panels() {
    let mut random = Random(32);
    let (rows, cols) = (19, 256);
    let pool = ThreadPool::new(2);
    for format in [Format::FP8, Format::MXFP8, Format::NVFP4, Format::NVFP4_SCALED] {
        let n_bytes = format.bytes_of(rows * cols).expect("whole blocks");
        let stored: Vec<u8> = (0..n_bytes).map(|_| random.below(256) as u8).collect();
        let packed = PackedMatrix::pack(format, rows, cols, &stored, &pool).expect("fits");
        let (mut want, mut found) = (vec![0.0; cols], vec![0.0; cols]);
        for (row, stored) in stored.chunks_exact(n_bytes / rows).enumerate() {
            dequantize_row(format, stored, &mut want);
            packed.dequantize_row(row, &mut found);
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            assert!(want.iter().zip(&found).all(same), "{} row {row}, seed 32", format.name());
        }
        // A product is a wrong number at worst.
        multiply(&random.normals(3 * cols), &packed, &pool);
    }
}
