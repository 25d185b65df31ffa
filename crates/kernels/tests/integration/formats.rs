//! Decoding and encoding of every stored format, compared with blocks written by the `gguf` Python package;
//! those of E4M3 with numbers of the `ml_dtypes` package.

use throng_kernels::quant::{Format, PackedMatrix, dequantize_row, quantize_row};
use throng_kernels::threads::ThreadPool;

const N: usize = 512;

fn fixture(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/fixtures/{name}.bin", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[test]
fn every_format_decodes_to_the_same_bits_as_elsewhere() {
    for format in Format::ALL {
        let file = fixture(&format!("dequantize_{}", format.name()));
        let (blocks, expected) = file.split_at(format.bytes_of(N).expect("whole blocks"));
        let mut out = vec![f32::NAN; N];
        dequantize_row(format, blocks, &mut out);
        for (i, (got, want)) in out.iter().zip(floats(expected)).enumerate() {
            assert_eq!(got, &want, "{} element {i}", format.name());
        }
        let packed = PackedMatrix::pack(format, 1, N, blocks, &ThreadPool::new(1)).expect("fits");
        let mut of_panel = vec![f32::NAN; N];
        packed.dequantize_row(0, &mut of_panel);
        assert_eq!(of_panel, out, "{} in panels", format.name());
    }
}

#[test]
fn the_simple_formats_encode_to_the_same_bytes_as_gguf_py() {
    use Format::{BF16, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
    for format in [F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1] {
        let file = fixture(&format!("quantize_{}", format.name()));
        let (x, expected) = file.split_at(4 * N);
        let mut out = vec![0xAA; format.bytes_of(N).expect("whole blocks")];
        quantize_row(format, &floats(x), &mut out);
        assert!(out == expected, "{}", format.name());
    }
}

/// Bounds are a little above what one absmax scale a sub-block gives on normally distributed values.
#[test]
fn encoding_then_decoding_stays_close() {
    let mut rng = 1u64;
    let x: Vec<f32> = (0..4096)
        .map(|_| {
            (0..8)
                .map(|_| {
                    rng = rng.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (rng >> 40) as f32 / (1u64 << 24) as f32 - 0.5
                })
                .sum::<f32>()
        })
        .collect();
    let power: f32 = x.iter().map(|v| v * v).sum();
    for format in Format::ALL {
        let bound = match format {
            Format::F32 => 0.0,
            Format::F16 | Format::BF16 => 0.003,
            Format::Q8_0 => 0.007,
            Format::FP8 => 0.03,
            Format::MXFP8 => 0.035,
            Format::Q6_K => 0.03,
            Format::Q5_0 | Format::Q5_1 | Format::Q5_K => 0.06,
            Format::Q4_0 | Format::Q4_1 | Format::Q4_K | Format::IQ4_NL | Format::IQ4_XS => 0.12,
            Format::MXFP4 => 0.17,
            Format::NVFP4 | Format::NVFP4_SCALED => 0.14,
            Format::Q3_K | Format::IQ3_S | Format::IQ3_XXS => 0.3,
            Format::Q2_K | Format::IQ2_XXS | Format::IQ2_XS | Format::IQ2_S => 0.5,
            Format::IQ1_S | Format::IQ1_M => 0.7,
            Format::TQ1_0 | Format::TQ2_0 => 1.0,
        };
        let mut bytes = vec![0; format.bytes_of(x.len()).expect("whole blocks")];
        quantize_row(format, &x, &mut bytes);
        let mut back = vec![0.0; x.len()];
        dequantize_row(format, &bytes, &mut back);
        let error: f32 = x.iter().zip(&back).map(|(a, b)| (a - b) * (a - b)).sum();
        let relative = (error / power).sqrt();
        assert!(relative <= bound, "{}: relative error {relative} above {bound}", format.name());
    }
}

#[test]
fn a_row_of_zeros_stays_zero() {
    for format in Format::ALL {
        let mut bytes = vec![0xFF; format.bytes_of(256).expect("whole blocks")];
        quantize_row(format, &[0.0; 256], &mut bytes);
        let mut back = vec![1.0; 256];
        dequantize_row(format, &bytes, &mut back);
        assert!(back.iter().all(|v| *v == 0.0), "{}", format.name());
    }
}

#[test]
#[should_panic(expected = "do not take")]
fn a_wrong_length_is_refused() {
    dequantize_row(Format::Q8_0, &[0; 33], &mut [0.0; 32]);
}
