//! The error of quantization at load time, compared with llama.cpp's quantizer on the same weights
//! (`../shared/gguf`; skipped where that is absent).

use throng_checkpoint::TensorSource;
use throng_checkpoint::gguf::Gguf;
use throng_kernels::Isa;
use throng_kernels::quant::{Format, dequantize_row, quantize_rows};
use throng_testkit::shared_files::shared;

fn open(name: &str) -> Option<Gguf> {
    Some(Gguf::open(&shared(&format!("gguf/{name}"))?).unwrap())
}

fn squared_distance(format: Format, stored: &[u8], want: &[f32]) -> f64 {
    let mut got = vec![0.0; want.len()];
    dequantize_row(format, stored, &mut got);
    got.iter().zip(want).map(|(got, want)| f64::from(got - want).powi(2)).sum()
}

/// Sums of squared errors over all tensors of a file that are stored in `format`: Throng's and llama.cpp's.
fn errors(file: &str, format: Format) -> Option<(f64, f64)> {
    let (exact, theirs) = (open("llama-F16.gguf")?, open(file)?);
    let mut sums = (0.0, 0.0);
    for name in theirs.names() {
        let quantized = theirs.tensor(name).unwrap();
        let stored = exact.tensor(name).unwrap();
        if quantized.format != format {
            continue;
        }
        let mut want = vec![0.0; stored.shape.iter().product()];
        dequantize_row(stored.format, stored.data, &mut want);
        let mut own = vec![0; quantized.data.len()];
        quantize_rows(
            Isa::best(),
            stored.format,
            format,
            *stored.shape.last().unwrap(),
            stored.data,
            &mut own,
        );
        assert!(format != Format::Q8_0 || own == quantized.data, "{name} is rounded as llama.cpp rounds");
        sums.0 += squared_distance(format, &own, &want);
        sums.1 += squared_distance(format, quantized.data, &want);
    }
    assert!(sums.1 > 0.0, "{file} has tensors in {}", format.name());
    Some(sums)
}

#[test]
fn quantization_errors_do_not_exceed_llama_cpps() {
    for (file, format) in [
        ("llama-Q8_0.gguf", Format::Q8_0),
        ("llama-Q4_0.gguf", Format::Q4_0),
        ("llama-Q4_K_M.gguf", Format::Q4_K),
        ("llama-Q6_K.gguf", Format::Q6_K),
    ] {
        let Some((ours, theirs)) = errors(file, format) else { continue };
        println!("{}: {:.4} of llama.cpp's squared error", format.name(), ours / theirs);
        assert!(ours <= 1.01 * theirs, "{}: {ours} against {theirs}", format.name());
    }
}
