//! Products with packed matrices: against the reference, and the same bits for every number of tokens and
//! threads on every ISA. AMX, with activations and weights in bf16, is compared with itself.

use crate::support::{Random, bits, distance};
use throng_kernels::matmul::{Activations, Forms, Product, matmul};
use throng_kernels::quant::{Format, PackError, PackedMatrix, dequantize_row};
use throng_kernels::reference;
use throng_kernels::threads::ThreadPool;
use throng_kernels::{Isa, IsaKind};

/// The ISAs that quantize activations to int8.
fn int8_isas() -> impl Iterator<Item = Isa> {
    Isa::available().into_iter().filter(|isa| !isa.has_tiles())
}

/// The nearest bf16, even in a tie.
fn bfloat(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF_0000)
}

/// A weight as unpacked for AMX: the nearest f16 (ties to even), then the nearest bf16 (ties away from zero).
fn tile_weight(w: f32) -> f32 {
    let bits = w.to_bits();
    let half = (bits + 0xFFF + (bits >> 13 & 1)) & !0x1FFF;
    f32::from_bits((half + 0x8000) & 0xFFFF_0000)
}

fn multiply(x: &[f32], w: &PackedMatrix, pool: &ThreadPool) -> Vec<f32> {
    let mut rows = Activations::default();
    rows.set(x, w.cols(), Forms::of(w.format()), pool);
    let mut out = vec![f32::NAN; rows.n_rows() * w.rows()];
    matmul(&[Product::new(&rows, w)], &mut out, w.rows(), pool);
    out
}

#[test]
fn packing_keeps_every_element() {
    let pool = ThreadPool::new(2);
    let mut random = Random(1);
    for format in Format::ALL {
        for (rows, cols) in [(1, 256), (16, 512), (37, 768)] {
            let stored = random.weights(format, rows, cols);
            let packed = PackedMatrix::pack(format, rows, cols, &stored, &pool).expect("fits");
            let (mut want, mut got) = (vec![0.0; cols], vec![0.0; cols]);
            for (r, stored) in stored.chunks_exact(stored.len() / rows).enumerate() {
                dequantize_row(format, stored, &mut want);
                packed.dequantize_row(r, &mut got);
                assert_eq!(got, want, "{} row {r}", format.name());
            }
        }
        let stored = random.weights(format, 64, 1024);
        let packed = PackedMatrix::pack(format, 64, 1024, &stored, &pool).expect("fits");
        let growth = packed.n_bytes() as f64 / stored.len() as f64;
        let bound = match format {
            // Points of grids are held as codes of their coordinates, digits of TQ1_0 as two bits each.
            Format::IQ1_S | Format::IQ1_M => 2.2,
            Format::IQ2_XXS | Format::IQ2_XS | Format::IQ2_S => 1.7,
            Format::IQ3_XXS | Format::IQ3_S | Format::TQ1_0 => 1.45,
            Format::TQ2_0 => 1.2,
            // Blocks of NVFP4 have a factor too.
            Format::NVFP4 => 1.12,
            _ => 1.07,
        };
        assert!(growth < bound, "{}: {growth} times the file's bytes", format.name());
    }
}

#[test]
fn a_wrong_shape_is_refused() {
    let pool = ThreadPool::new(1);
    let pack = |rows, cols, n| PackedMatrix::pack(Format::Q8_0, rows, cols, &vec![0; n], &pool).err();
    assert_eq!(pack(2, 33, 68), Some(PackError::Shape));
    assert_eq!(pack(2, 32, 67), Some(PackError::Shape));
    assert_eq!(pack(usize::MAX, 32, 68), Some(PackError::Shape));
    assert_eq!(pack(0, 32, 0), Some(PackError::Shape));
}

/// Every ISA, against the reference on dequantized weights.
///
/// Float formats differ from it by the order of summation only: 1e-5 of the outputs' size. With AMX, the
/// remainder of the two bf16 parts of activations (at most 2^-18 of each) is within that. For f16 weights,
/// the product of the low parts is omitted too, which adds as much again. With quantized activations each of
/// them is off by up to half a step of its block, a step being 1/253 of the block's range (about 4.2 of a
/// normal distribution's sigmas): an rms error of 0.0048 a value, and so of the sum; six sigmas, 0.03. The
/// ISA with tiles is compared with the product of rounded activations and rounded weights, which leaves the
/// order of summation (MXFP4, whose activations have two parts, with exact ones); but in formats whose scales
/// are themselves products, which become f16 values first, and in Q4_1, whose min takes in a part of the
/// scale, one weight in eight may fall to the other side: a 256th of it, six sigmas of the sum 0.01.
#[test]
fn every_isa_is_close_to_the_reference() {
    let mut random = Random(2);
    for format in Format::ALL {
        for (n, k, m) in [(1, 256, 16), (3, 512, 5), (7, 1280, 50), (13, 256, 33)] {
            let x = random.normals(n * k);
            let stored = random.weights(format, m, k);
            let mut weights = vec![0.0; m * k];
            dequantize_row(format, &stored, &mut weights);
            let mut want = vec![0.0; n * m];
            reference::matmul(&x, &weights, &mut want, n, k, m);
            let rounded: Vec<f32> = x.iter().copied().map(bfloat).collect();
            weights.iter_mut().for_each(|w| *w = tile_weight(*w));
            let mut want_rounded = vec![0.0; n * m];
            reference::matmul(&rounded, &weights, &mut want_rounded, n, k, m);
            for isa in Isa::available() {
                let pool = ThreadPool::with_isa(1, isa);
                let packed = PackedMatrix::pack(format, m, k, &stored, &pool).expect("fits");
                let (want, bound) = match (format.is_float(), isa.kind()) {
                    (true, IsaKind::AmxBf16) if format == Format::F16 => (&want, 2e-5),
                    (true, _) => (&want, 1e-5),
                    // Exact in bf16, with activations in two parts.
                    (false, IsaKind::AmxBf16) if format == Format::MXFP4 => (&want, 1e-5),
                    (false, IsaKind::AmxBf16)
                        if format.block_elements() <= 64
                            && ![Format::Q4_1, Format::NVFP4_SCALED].contains(&format) =>
                    {
                        (&want_rounded, 1e-5)
                    }
                    (false, IsaKind::AmxBf16) => (&want_rounded, 0.01),
                    (false, _) => (&want, 0.03),
                };
                let d = distance(&multiply(&x, &packed, &pool), want);
                assert!(d <= bound, "{} {} [{n},{k}]x[{m}]: {d}", isa.name(), format.name());
            }
        }
    }
}

/// Activations that int8 represents exactly (253 steps of size one between a block's ends): the only error is
/// that of the float summation, 1e-5 in all quantized formats.
#[test]
fn exact_activations_give_exact_dots() {
    let mut random = Random(3);
    let (n, k, m) = (5, 1024, 48);
    let mut x: Vec<f32> = (0..n * k).map(|_| random.below(254) as f32 - 127.0).collect();
    x.chunks_mut(32).for_each(|block| (block[7], block[20]) = (-127.0, 126.0));
    x[..32].iter_mut().for_each(|v| *v += 500.0);
    for format in Format::ALL {
        let stored = random.weights(format, m, k);
        let mut weights = vec![0.0; m * k];
        dequantize_row(format, &stored, &mut weights);
        let mut want = vec![0.0; n * m];
        reference::matmul(&x, &weights, &mut want, n, k, m);
        for isa in int8_isas() {
            let pool = ThreadPool::with_isa(2, isa);
            let packed = PackedMatrix::pack(format, m, k, &stored, &pool).expect("fits");
            let d = distance(&multiply(&x, &packed, &pool), &want);
            assert!(d <= 1e-5, "{} {}: {d}", isa.name(), format.name());
        }
    }
}

#[test]
fn a_rows_bits_depend_on_nothing_else() {
    let mut random = Random(4);
    let (k, m) = (1344, 72);
    for format in Format::ALL {
        let k = k / format.block_elements() * format.block_elements();
        let x = random.normals(70 * k);
        let stored = random.weights(format, m, k);
        let scalar = ThreadPool::with_isa(1, Isa::SCALAR);
        let packed = PackedMatrix::pack(format, m, k, &stored, &scalar).expect("fits");
        let alone = |isa| -> Vec<u32> {
            let pool = ThreadPool::with_isa(1, isa);
            x.chunks(k).flat_map(|x| bits(&multiply(x, &packed, &pool))).collect()
        };
        let bytes_alone = alone(Isa::SCALAR);
        for isa in Isa::available() {
            let alone = if isa.has_tiles() { &alone(isa) } else { &bytes_alone };
            for n_threads in [1, 2] {
                let pool = ThreadPool::with_isa(n_threads, isa);
                for n in (1..=40).chain([70]) {
                    let first = random.below(70 - n + 1);
                    let got = bits(&multiply(&x[first * k..][..n * k], &packed, &pool));
                    let want = &alone[first * m..][..n * m];
                    assert!(got == want, "{} {} {n} tokens, {n_threads} threads", isa.name(), format.name());
                }
            }
        }
    }
}

#[test]
fn columns_need_not_fill_a_block_of_floats() {
    let mut random = Random(5);
    for (k, m) in [(1, 1), (31, 3), (33, 17), (100, 20)] {
        let (x, w) = (random.normals(2 * k), random.normals(m * k));
        let mut want = vec![0.0; 2 * m];
        reference::matmul(&x, &w, &mut want, 2, k, m);
        let stored: Vec<u8> = w.iter().flat_map(|v| v.to_le_bytes()).collect();
        for isa in Isa::available() {
            let pool = ThreadPool::with_isa(1, isa);
            let packed = PackedMatrix::pack(Format::F32, m, k, &stored, &pool).expect("fits");
            assert!(distance(&multiply(&x, &packed, &pool), &want) < 1e-5, "{} {k} {m}", isa.name());
        }
    }
}

#[test]
fn stacked_and_grouped_products_write_to_their_own_outputs() {
    let mut random = Random(6);
    let pool = ThreadPool::new(2);
    let k = 256;
    let matrices: Vec<PackedMatrix> = [(Format::Q8_0, 20), (Format::Q4_K, 33), (Format::F16, 7)]
        .map(|(format, m)| {
            PackedMatrix::pack(format, m, k, &random.weights(format, m, k), &pool).expect("fits")
        })
        .into();
    let x = random.normals(6 * k);
    let bias = random.normals(33);
    let mut rows = Activations::default();
    rows.set(&x, k, Forms { ints: true, mxfp4: true, short_floats: true, ..Forms::default() }, &pool);
    let mut out = vec![0.0; 6 * 60];
    let at = |i: usize, first_col| Product {
        first_col,
        bias: (i == 1).then_some(&bias[..]),
        ..Product::new(&rows, &matrices[i])
    };
    matmul(&[at(0, 0), at(1, 20), at(2, 53)], &mut out, 60, &pool);
    for (i, first_col) in [(0, 0), (1, 20), (2, 53)] {
        let mut alone = multiply(&x, &matrices[i], &pool);
        if i == 1 {
            reference::add_bias(&mut alone, &bias);
        }
        for (out, alone) in out.chunks(60).zip(alone.chunks(matrices[i].rows())) {
            assert_eq!(bits(&out[first_col..][..alone.len()]), bits(alone));
        }
    }

    // Two experts with two and four tokens.
    let (mut few, mut more) = (Activations::default(), Activations::default());
    let forms = Forms { ints: true, mxfp4: true, ..Forms::default() };
    few.set(&x[..2 * k], k, forms, &pool);
    more.set(&x[2 * k..], k, forms, &pool);
    let experts =
        [Product::new(&few, &matrices[0]), Product { first_row: 2, ..Product::new(&more, &matrices[1]) }];
    let mut out = vec![0.0; 6 * 40];
    matmul(&experts, &mut out, 40, &pool);
    let (a, b) = (multiply(&x, &matrices[0], &pool), multiply(&x, &matrices[1], &pool));
    for i in 0..6 {
        let want = if i < 2 { &a[i * 20..][..20] } else { &b[i * 33..][..33] };
        assert_eq!(bits(&out[i * 40..][..want.len()]), bits(want), "row {i}");
    }
}

#[test]
fn extreme_values_stay_in_their_row() {
    let mut random = Random(7);
    let (k, m) = (256, 16);
    for format in [Format::Q8_0, Format::Q4_K, Format::Q6_K, Format::F32] {
        let stored = random.weights(format, m, k);
        let mut x = random.normals(6 * k);
        x[3] = f32::NAN;
        x[k + 5] = f32::INFINITY;
        x[2 * k..3 * k].fill(1e-40);
        for isa in Isa::available() {
            let (large, small) = if isa.has_tiles() { (1e18, 1e-18) } else { (1e30, 1e-25) };
            let mut x = x.clone();
            x[3 * k..4 * k].iter_mut().for_each(|v| *v *= large);
            x[4 * k..5 * k].iter_mut().for_each(|v| *v *= small);
            let pool = ThreadPool::with_isa(1, isa);
            let packed = PackedMatrix::pack(format, m, k, &stored, &pool).expect("fits");
            let out = multiply(&x, &packed, &pool);
            let row = |i: usize| &out[i * m..][..m];
            let name = format!("{} {}", isa.name(), format.name());
            assert!(row(0).iter().all(|v| v.is_nan()), "{name}: NaN must show");
            assert!(row(1).iter().all(|v| !v.is_finite()), "{name}: infinity must show");
            assert!(row(2).iter().all(|v| *v == 0.0), "{name}: subnormals are zero");
            assert!(row(3).iter().all(|v| v.is_finite() && v.abs() > large / 1e3), "{name}: large values");
            assert!(row(4).iter().any(|v| v.abs() > small / 10.0), "{name}: small values");
            assert_eq!(bits(row(5)), bits(&multiply(&x[5 * k..], &packed, &pool)), "{name}");
        }
    }
}

#[test]
fn a_nan_scale_gives_nan_outputs() {
    let mut random = Random(10);
    let (k, m) = (64, 20);
    let x = random.normals(3 * k);
    for bits in [0x7C00u16, 0xFC00, 0x7E00] {
        let mut stored = random.weights(Format::Q8_0, m, k);
        stored[..2].copy_from_slice(&bits.to_le_bytes());
        for isa in Isa::available() {
            let pool = ThreadPool::with_isa(1, isa);
            let packed = PackedMatrix::pack(Format::Q8_0, m, k, &stored, &pool).expect("fits");
            let out = multiply(&x, &packed, &pool);
            assert!(out.iter().step_by(m).all(|v| !v.is_finite()), "{} {bits:x}", isa.name());
        }
    }
}

/// With an int8 residual of the activations, the error is about 1/253² of a block's range.
#[test]
fn residuals_make_products_nearly_exact() {
    let mut random = Random(8);
    let (n, k, m) = (6, 1280, 40);
    let x = random.normals(n * k);
    for format in Format::ALL.into_iter().filter(|f| !f.is_float()) {
        let stored = random.weights(format, m, k);
        let mut weights = vec![0.0; m * k];
        dequantize_row(format, &stored, &mut weights);
        let mut want = vec![0.0; n * m];
        reference::matmul(&x, &weights, &mut want, n, k, m);
        let mut outputs = Vec::new();
        for isa in int8_isas() {
            let pool = ThreadPool::with_isa(2, isa);
            let packed = PackedMatrix::pack(format, m, k, &stored, &pool).expect("fits");
            let mut rows = Activations::default();
            rows.set(&x, k, Forms { ints: true, mxfp4: true, residuals: true, ..Forms::default() }, &pool);
            let mut out = vec![0.0; n * m];
            let product = Product { refined: (0, m), ..Product::new(&rows, &packed) };
            matmul(&[product], &mut out, m, &pool);
            assert!(distance(&out, &want) < 1e-4, "{} {}", isa.name(), format.name());
            outputs.push(bits(&out));
        }
        assert!(outputs.iter().all(|o| *o == outputs[0]), "{}", format.name());
    }
}

/// Only the panels with refined rows change, with the bits of a fully refined product, on any number of
/// threads.
#[test]
fn rows_are_refined_by_panels() {
    let mut random = Random(9);
    let (n, k, m) = (19, 320, 200);
    let x = random.normals(n * k);
    let scalar = ThreadPool::with_isa(1, Isa::SCALAR);
    let packed =
        PackedMatrix::pack(Format::Q8_0, m, k, &random.weights(Format::Q8_0, m, k), &scalar).expect("fits");
    let multiply = |refined, pool: &ThreadPool| {
        let mut rows = Activations::default();
        rows.set(&x, k, Forms { ints: true, mxfp4: true, residuals: true, ..Forms::default() }, pool);
        let mut out = vec![0.0; n * m];
        matmul(&[Product { refined, ..Product::new(&rows, &packed) }], &mut out, m, pool);
        out
    };
    let (all, none) = (multiply((0, m), &scalar), multiply((0, 0), &scalar));
    for isa in int8_isas() {
        for n_threads in [1, 2, 3] {
            let some = multiply((50, 113), &ThreadPool::with_isa(n_threads, isa));
            for (i, out) in some.iter().enumerate() {
                let want = if (48..128).contains(&(i % m)) { all[i] } else { none[i] };
                assert_eq!(out.to_bits(), want.to_bits(), "{} row {}", isa.name(), i % m);
            }
        }
    }
}
