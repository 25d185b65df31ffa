//! Row operations: against the reference on every ISA, and the same bits on all of them.

use crate::support::{Random, bits, distance};
use throng_kernels::rows::{self, Activation, Columns};
use throng_kernels::threads::ThreadPool;
use throng_kernels::{Isa, reference};

const WIDTHS: [usize; 6] = [1, 16, 31, 64, 100, 1024];

/// Runs `op` on every ISA and on two threads, asserts the same bits everywhere, and returns the result.
fn on_every_lane(op: impl Fn(&ThreadPool) -> Vec<f32>) -> Vec<f32> {
    let first = op(&ThreadPool::with_isa(1, Isa::SCALAR));
    for isa in Isa::available() {
        assert_eq!(bits(&first), bits(&op(&ThreadPool::with_isa(2, isa))), "{}", isa.name());
    }
    first
}

/// Sixteen partial sums instead of one: a few units in the last place.
#[test]
fn norms_match_the_reference() {
    let mut random = Random(11);
    for d in WIDTHS {
        let (x, gain) = (random.normals(33 * d), random.normals(d));
        let mut want = vec![0.0; x.len()];
        reference::rms_norm(&x, &gain, 1e-6, &mut want);
        let got = on_every_lane(|pool| {
            let mut out = vec![f32::NAN; x.len()];
            rows::rms_norm(&x, &gain, 1e-6, &mut out, pool);
            out
        });
        assert!(distance(&got, &want) < 1e-5, "{d}");

        let bias = random.normals(d);
        reference::layer_norm(&x, &gain, &bias, 1e-6, &mut want);
        let got = on_every_lane(|pool| {
            let mut out = vec![f32::NAN; x.len()];
            rows::layer_norm(&x, &gain, &bias, 1e-6, &mut out, pool);
            out
        });
        assert!(distance(&got, &want) < 1e-5, "layer norm {d}");

        let (stride, heads) = (5 * d, Columns { first: d, n_groups: 3, width: d });
        let wide = random.normals(33 * 5 * d);
        let got = on_every_lane(|pool| {
            let mut x = wide.clone();
            rows::norm_groups(&mut x, stride, heads, &gain, 1e-6, pool);
            x
        });
        for (i, (got, x)) in got.chunks(d).zip(wide.chunks(d)).enumerate() {
            let mut want = x.to_vec();
            if (1..4).contains(&(i % 5)) {
                reference::rms_norm(x, &gain, 1e-6, &mut want);
            }
            assert!(distance(got, &want) < 1e-5, "group {i} of width {d}");
        }
    }
}

/// The polynomial exponential is within 2 units in the last place of the standard library's; with divisions
/// and the cancellation in tanh, the error is 2e-6 for outputs of size 1.
#[test]
fn activations_match_the_reference() {
    let mut random = Random(12);
    let mut x: Vec<f32> = (0..4096).map(|_| random.normal() * 6.0).collect();
    x[..8].copy_from_slice(&[0.0, -0.0, 100.0, -100.0, 1e30, -1e30, 88.0, -88.0]);
    for width in WIDTHS {
        let x = &x[..4 * width];
        let clamped = Activation::ClampedSwiglu { alpha: 1.702, limit: 0.8 };
        for gate in [Activation::Silu, Activation::GeluTanh, Activation::Gelu, Activation::Relu, clamped] {
            let got = on_every_lane(|pool| {
                let mut out = vec![f32::NAN; 2 * width];
                rows::glu(x, width, gate, &mut out, pool);
                out
            });
            for (got, x) in got.chunks(width).zip(x.chunks(2 * width)) {
                let mut want = x[..width].to_vec();
                match gate {
                    Activation::Silu => reference::silu_mul(&mut want, &x[width..]),
                    Activation::GeluTanh => reference::gelu_tanh_mul(&mut want, &x[width..]),
                    Activation::Gelu => reference::gelu_mul(&mut want, &x[width..]),
                    Activation::Relu => reference::relu_mul(&mut want, &x[width..]),
                    Activation::ClampedSwiglu { alpha, limit } => {
                        reference::clamped_swiglu(&mut want, &x[width..], alpha, limit);
                    }
                }
                for ((got, want), up) in got.iter().zip(want).zip(&x[width..]) {
                    // The error function is off by 1.5e-7 whatever the output is, and the input multiplies that.
                    let size = if gate == Activation::Gelu { want.abs().max(up.abs()) } else { want.abs() };
                    assert!((got - want).abs() <= 2e-6 * size.max(1.0), "{gate:?} {got} {want}");
                }
            }
        }
        let got = on_every_lane(|pool| {
            let mut out = vec![f32::NAN; x.len()];
            rows::glu(x, width, Activation::Gelu, &mut out, pool);
            out
        });
        for (got, x) in got.iter().zip(x) {
            let want = reference::gelu(*x);
            assert!((got - want).abs() <= 2e-6 * want.abs().max(1.0), "without gates: {got} {want}");
        }
        let got = on_every_lane(|pool| {
            let mut x = x.to_vec();
            rows::softcap(&mut x, 30.0, pool);
            x
        });
        let mut want = x.to_vec();
        reference::softcap(&mut want, 30.0);
        assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5), "{width}");
    }
}

#[test]
fn nan_stays_nan_and_stays_in_its_row() {
    let mut x = Random(13).normals(4 * 64);
    x[70] = f32::NAN;
    let out = on_every_lane(|pool| {
        let mut out = vec![0.0; 4 * 64];
        rows::rms_norm(&x, &[1.0; 64], 1e-6, &mut out, pool);
        out
    });
    assert!(out[64..128].iter().all(|v| v.is_nan()));
    assert!(out[..64].iter().chain(&out[128..]).all(|v| v.is_finite()));
    let out = on_every_lane(|pool| {
        let mut out = vec![0.0; 128];
        rows::glu(&x, 64, Activation::Silu, &mut out, pool);
        out
    });
    assert_eq!(out.iter().filter(|v| v.is_nan()).count(), 1);
}

#[test]
fn sums_and_rotations_match_the_reference() {
    let mut random = Random(14);
    let (x, y) = (random.normals(20_001), random.normals(20_001));
    let got = on_every_lane(|pool| {
        let mut x = x.clone();
        rows::add_scaled(&mut x, &y, 0.25, pool);
        rows::scale(&mut x, 3.0, pool);
        x
    });
    for ((got, x), y) in got.iter().zip(&x).zip(&y) {
        assert_eq!(*got, (x + y * 0.25) * 3.0);
    }
    let (stride, heads) = (200, Columns { first: 8, n_groups: 2, width: 80 });
    for (style, n_pairs) in [
        (reference::RopeStyle::HalfSplit, 32),
        (reference::RopeStyle::HalfSplit, 20),
        (reference::RopeStyle::Interleaved, 32),
    ] {
        let (cos, sin) = (random.normals(100 * n_pairs), random.normals(100 * n_pairs));
        let angles = |i: usize| {
            let angles = n_pairs * (i * 7 % 100)..n_pairs * (i * 7 % 100 + 1);
            (&cos[angles.clone()], &sin[angles])
        };
        let got = on_every_lane(|pool| {
            let mut x = x[..20_000].to_vec();
            rows::rope(&mut x, stride, heads, angles, style, pool);
            x
        });
        let mut want = x[..20_000].to_vec();
        for (i, row) in want.chunks_mut(200).enumerate() {
            for head in row[8..168].chunks_mut(80) {
                let (cos, sin) = angles(i);
                reference::rope(head, cos, sin, style);
            }
        }
        assert_eq!(got, want);
    }
}

#[test]
fn gathered_rows_are_copies_and_weighted_sums_run_in_order() {
    let mut random = Random(14);
    for d in WIDTHS {
        let x = random.normals(40 * d);
        let from: Vec<usize> = (0..120).map(|_| random.below(40)).collect();
        let gathered = on_every_lane(|pool| {
            let mut out = vec![f32::NAN; from.len() * d];
            rows::gather(&x, d, &from, &mut out, pool);
            out
        });
        assert!(gathered.chunks(d).zip(&from).all(|(row, &i)| row == &x[i * d..][..d]), "{d}");

        let terms: Vec<(usize, f32)> = from.iter().map(|&row| (row, random.normal())).collect();
        let sums = on_every_lane(|pool| {
            let mut out = vec![f32::NAN; from.len() / 3 * d];
            rows::weighted_sums(&x, d, &terms, &mut out, pool);
            out
        });
        for (sum, terms) in sums.chunks(d).zip(terms.chunks(3)) {
            for (c, sum) in sum.iter().enumerate() {
                assert_eq!(*sum, terms.iter().fold(0.0, |sum, (row, weight)| sum + weight * x[row * d + c]));
            }
        }
    }
}
