//! Fused operations before and after a matrix product give the bits of the unfused sequence, on every ISA.

use crate::support::{Random, bits};
use throng_kernels::Isa;
use throng_kernels::matmul::{Activations, Forms, Gated, Product, RowNorm, gated_matmul, matmul};
use throng_kernels::quant::{Format, PackedMatrix};
use throng_kernels::rows::{self, Activation};
use throng_kernels::threads::ThreadPool;

const ALL_FORMS: Forms = Forms { ints: true, mxfp4: true, residuals: true, short_floats: true, floats: true };
/// Tokens: one, a few, a group and more, two groups and more, many.
const N_TOKENS: [usize; 5] = [1, 5, 20, 33, 150];

fn pack(format: Format, rows: usize, cols: usize, random: &mut Random, pool: &ThreadPool) -> PackedMatrix {
    PackedMatrix::pack(format, rows, cols, &random.weights(format, rows, cols), pool).expect("fits")
}

#[test]
fn a_fused_norm_has_the_bits_of_a_separate_norm() {
    let mut random = Random(41);
    for cols in [256, 1536] {
        let gain = random.normals(cols);
        for isa in Isa::available() {
            let pool = ThreadPool::with_isa(2, isa);
            for format in [Format::F32, Format::BF16, Format::Q8_0, Format::Q4_K] {
                let w = pack(format, 40, cols, &mut random, &pool);
                for n in N_TOKENS {
                    let x = random.normals(n * cols);
                    let mut normed = vec![0.0; x.len()];
                    rows::rms_norm(&x, &gain, 1e-6, &mut normed, &pool);
                    let (mut before, mut on_the_way) = (Activations::default(), Activations::default());
                    before.set(&normed, cols, ALL_FORMS, &pool);
                    on_the_way.set_normed(&x, RowNorm { gain: &gain, eps: 1e-6 }, ALL_FORMS, &pool);
                    let product = |x: &Activations| {
                        let mut out = vec![f32::NAN; n * 40];
                        matmul(&[Product { refined: (0, 20), ..Product::new(x, &w) }], &mut out, 40, &pool);
                        bits(&out)
                    };
                    assert_eq!(
                        product(&on_the_way),
                        product(&before),
                        "{} {} {n} x {cols}",
                        isa.name(),
                        format.name()
                    );
                }
            }
        }
    }
}

#[test]
fn a_fused_activation_has_the_bits_of_a_separate_one() {
    let mut random = Random(42);
    let (cols, width) = (512, 152);
    let formats = [
        (Format::Q8_0, Format::Q8_0),
        (Format::Q4_K, Format::Q4_K),
        (Format::F16, Format::F16),
        (Format::Q4_K, Format::Q6_K),
        (Format::BF16, Format::F32),
    ];
    for isa in Isa::available() {
        let pool = ThreadPool::with_isa(2, isa);
        for (of_gate, of_up) in formats {
            let gate = pack(of_gate, width, cols, &mut random, &pool);
            let up = pack(of_up, width, cols, &mut random, &pool);
            let biases = [random.normals(width), random.normals(width)];
            for (n, biased, function) in N_TOKENS
                .into_iter()
                .flat_map(|n| [(n, true, Activation::Silu), (n, false, Activation::GeluTanh)])
            {
                let mut x = Activations::default();
                x.set(&random.normals(n * cols), cols, ALL_FORMS, &pool);
                let [bias, up_bias] = biases.each_ref().map(|bias| biased.then_some(&bias[..]));
                let mut both = vec![f32::NAN; n * 2 * width];
                let second = Product { bias: up_bias, first_col: width, ..Product::new(&x, &up) };
                matmul(&[Product { bias, ..Product::new(&x, &gate) }, second], &mut both, 2 * width, &pool);
                let mut want = vec![0.0; n * width];
                rows::glu(&both, width, function, &mut want, &pool);
                let gated = Some(Gated { up: &up, up_bias, function });
                let mut got = vec![f32::NAN; n * width];
                matmul(&[Product { bias, gated, ..Product::new(&x, &gate) }], &mut got, width, &pool);
                assert_eq!(bits(&got), bits(&want), "{} {} {} {n}", isa.name(), of_gate.name(), of_up.name());
            }
        }
    }
}

#[test]
fn fused_swiglu_records_have_the_bits_of_separate_packing() {
    let mut random = Random(44);
    let cols = 512;
    let formats = [
        (Format::Q8_0, Format::Q8_0, 288, Format::Q8_0),
        (Format::Q4_K, Format::Q6_K, 288, Format::Q4_0),
        (Format::BF16, Format::BF16, 152, Format::F16),
        (Format::Q4_K, Format::Q4_K, 152, Format::F32),
    ];
    for isa in Isa::available() {
        let pool = ThreadPool::with_isa(2, isa);
        for (of_gate, of_up, width, of_down) in formats {
            let gate = pack(of_gate, width, cols, &mut random, &pool);
            let up = pack(of_up, width, cols, &mut random, &pool);
            let down = pack(of_down, 40, width, &mut random, &pool);
            let [bias, up_bias] = [0, 1].map(|_| random.normals(width));
            // Two gated products in one fork, as of two experts.
            for n in N_TOKENS {
                let x = [n, N_TOKENS[1]].map(|n| {
                    let mut x = Activations::default();
                    x.set(&random.normals(n * cols), cols, ALL_FORMS, &pool);
                    x
                });
                let gated = Some(Gated { up: &up, up_bias: Some(&up_bias), function: Activation::Silu });
                let units =
                    x.each_ref().map(|x| Product { bias: Some(&bias), gated, ..Product::new(x, &gate) });
                let mut got = [Activations::default(), Activations::default()];
                gated_matmul(&units, ALL_FORMS, &mut got, &pool);
                for (unit, got) in units.iter().zip(&got) {
                    let mut rows = vec![f32::NAN; unit.x.n_rows() * width];
                    matmul(&[*unit], &mut rows, width, &pool);
                    let mut want = Activations::default();
                    want.set(&rows, width, ALL_FORMS, &pool);
                    let product = |x: &Activations| {
                        let mut out = vec![f32::NAN; x.n_rows() * 40];
                        matmul(
                            &[Product { refined: (0, 20), ..Product::new(x, &down) }],
                            &mut out,
                            40,
                            &pool,
                        );
                        bits(&out)
                    };
                    let unit = format!("{} {} {} {n}", isa.name(), of_gate.name(), of_down.name());
                    assert_eq!(product(got), product(&want), "{unit}");
                }
            }
        }
    }
}

#[test]
fn accumulating_adds_to_the_output_independently_of_other_tokens() {
    let mut random = Random(43);
    let (cols, rows, n) = (1056, 60, 70);
    for isa in Isa::available() {
        let pool = ThreadPool::with_isa(2, isa);
        for format in [Format::Q8_0, Format::BF16] {
            let w = pack(format, rows, cols, &mut random, &pool);
            let (x, before) = (random.normals(n * cols), random.normals(n * rows));
            let added = |tokens: std::ops::Range<usize>| {
                let mut activations = Activations::default();
                activations.set(&x[tokens.start * cols..tokens.end * cols], cols, ALL_FORMS, &pool);
                let mut out = before[tokens.start * rows..tokens.end * rows].to_vec();
                matmul(&[Product { adds: true, ..Product::new(&activations, &w) }], &mut out, rows, &pool);
                let mut alone = vec![0.0; out.len()];
                matmul(&[Product::new(&activations, &w)], &mut alone, rows, &pool);
                let sums = before[tokens.start * rows..].iter().zip(&alone).map(|(before, y)| before + y);
                let off = out.iter().zip(sums).map(|(out, sum)| (out - sum).abs()).fold(0.0, f32::max);
                let largest = alone.iter().fold(0.0f32, |largest, y| largest.max(y.abs()));
                assert!(off <= 1e-5 * largest.max(1.0), "{} {}: {off}", isa.name(), format.name());
                out
            };
            let all = added(0..n);
            for token in [0, 17, 69] {
                let alone = added(token..token + 1);
                assert_eq!(bits(&alone), bits(&all[token * rows..][..rows]), "{} {token}", isa.name());
            }
        }
    }
}
