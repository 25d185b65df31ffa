//! Quantizing whole rows: the same bytes on every ISA, errors within the bounds of the search, and no panic
//! for any values.

use crate::support::Random;
use throng_kernels::Isa;
use throng_kernels::quant::{Format, QUANTIZER_VERSION, dequantize_row, quantize_row, quantize_rows};

const SEARCHED: [Format; 4] = [Format::Q4_0, Format::Q5_0, Format::Q4_K, Format::Q6_K];
/// Not a multiple of the 512 elements that are searched together.
const COLS: usize = 768;

fn stored(format: Format, x: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; format.bytes_of(x.len()).expect("whole blocks")];
    quantize_row(format, x, &mut bytes);
    bytes
}

fn quantized(isa: Isa, from: Format, to: Format, cols: usize, bytes: &[u8]) -> Vec<u8> {
    let rows = bytes.len() / from.bytes_of(cols).expect("whole blocks");
    let mut out = vec![0xAA; rows * to.bytes_of(cols).expect("whole blocks")];
    quantize_rows(isa, from, to, cols, bytes, &mut out);
    out
}

fn of_floats(to: Format, x: &[f32]) -> Vec<u8> {
    quantized(Isa::best(), Format::F32, to, x.len(), &stored(Format::F32, x))
}

#[test]
fn every_isa_gives_the_same_bytes_of_every_float_format() {
    let x = Random(11).normals(3 * COLS);
    for from in [Format::F32, Format::F16, Format::BF16, Format::FP8, Format::MXFP8] {
        let bytes = stored(from, &x);
        for to in Format::ALL {
            let want = quantized(Isa::SCALAR, from, to, COLS, &bytes);
            for isa in Isa::available() {
                let got = quantized(isa, from, to, COLS, &bytes);
                assert!(got == want, "{} to {} on {}", from.name(), to.name(), isa.name());
            }
        }
    }
}

#[test]
fn q8_0_is_the_reference_rounding_halves_included() {
    let mut rng = Random(12);
    let mut x = rng.normals(64 * 32);
    for block in x.chunks_exact_mut(64) {
        // With 127 as the largest value the scale is 1; the others are ties of rounding and their neighbours.
        for v in &mut block[32..] {
            let half = rng.below(253) as f32 / 2.0 - 63.0;
            *v = [half, f32::from_bits(half.to_bits() + 1), f32::from_bits(half.to_bits().max(1) - 1)]
                [rng.below(3)];
        }
        block[32] = 127.0;
    }
    assert!(of_floats(Format::Q8_0, &x) == stored(Format::Q8_0, &x));
}

#[test]
fn the_search_loses_less_than_one_plain_scale() {
    let x = Random(13).normals(16 * COLS);
    let lost = |format: Format, bytes: &[u8]| -> f64 {
        let mut back = vec![0.0; x.len()];
        dequantize_row(format, bytes, &mut back);
        x.iter().zip(&back).map(|(a, b)| f64::from(a - b).powi(2)).sum()
    };
    for (format, bound) in SEARCHED.into_iter().zip([0.9, 0.95, 0.85, 0.97]) {
        let ratio = lost(format, &of_floats(format, &x)) / lost(format, &stored(format, &x));
        assert!(ratio < bound, "{}: {ratio} of the squared error", format.name());
    }
}

#[test]
fn blocks_without_a_spread_keep_their_value() {
    for value in [0.0, 0.5, -0.5, 1e-30] {
        for format in SEARCHED {
            let mut back = vec![f32::NAN; 512];
            dequantize_row(format, &of_floats(format, &[value; 512]), &mut back);
            let close = |got: &f32| (got - value).abs() <= 0.01 * value.abs() + 1e-7;
            assert!(back.iter().all(close), "{} of {value}: {:?}", format.name(), &back[..4]);
        }
    }
}

#[test]
fn a_block_is_quantized_by_itself_whatever_its_neighbours_hold() {
    let x = Random(14).normals(1024);
    for format in SEARCHED {
        let n = format.block_elements();
        let alone = of_floats(format, &x[512..512 + n]);
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-40] {
            let mut x = x.clone();
            x[..512].iter_mut().step_by(7).for_each(|v| *v = odd);
            let all = of_floats(format, &x);
            let at = 512 / n * format.block_bytes();
            assert!(all[at..at + format.block_bytes()] == alone, "{} beside {odd}", format.name());
        }
    }
}

/// Quantized models cached on disk are discarded when the quantizer's version changes, and only then.
#[test]
fn changed_bytes_need_a_new_version() {
    let x = Random(15).normals(4 * COLS);
    let mut digest = 0xcbf2_9ce4_8422_2325u64;
    // Formats after this one are read and never written.
    for format in Format::ALL.into_iter().filter(|&format| format <= Format::MXFP4) {
        for byte in of_floats(format, &x) {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    assert_eq!(
        (QUANTIZER_VERSION, digest),
        (1, 1_143_070_397_341_767_497),
        "the bytes changed: raise QUANTIZER_VERSION and put both numbers here"
    );
}

#[test]
#[should_panic(expected = "rows of 96 from F32 to Q4_K")]
fn rows_that_are_not_whole_blocks_are_refused() {
    quantize_rows(Isa::best(), Format::F32, Format::Q4_K, 96, &[0; 384], &mut [0; 54]);
}
