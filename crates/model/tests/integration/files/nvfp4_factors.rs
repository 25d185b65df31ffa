//! GGUF files in NVFP4 with the factors that llama.cpp keeps in tensors of their own: one for a matrix, one
//! for each expert. A factor of two or four and scales that are so much larger are the same numbers, and
//! compute the same bits.

use std::path::Path;
use std::sync::Arc;

use crate::harness::{BACKENDS, LIMITS, OneSequence};
use fastrand::Rng;
use throng_checkpoint::TensorSource;
use throng_checkpoint::gguf::Gguf;
use throng_checkpoint::gguf::writer::{TensorToWrite, write};
use throng_core::request::SamplingParams;
use throng_kernels::quant::Format;
use throng_model::{LoadOptions, RunnerOptions, load};
use throng_testkit::tiny_model::TinyModel;

const N_EXPERTS: usize = 4;
const VOCABULARY: usize = 64;

/// A tensor of a file.
#[derive(Clone)]
struct Tensor {
    name: String,
    shape: Vec<usize>,
    format: Format,
    data: Vec<u8>,
}

fn tensors(gguf: &Gguf) -> Vec<Tensor> {
    let tensor = |name: &str| {
        let view = gguf.tensor(name).unwrap();
        let (name, shape) = (name.to_owned(), view.shape.to_vec());
        Tensor { name, shape, format: view.format, data: view.data.to_vec() }
    };
    gguf.names().into_iter().map(tensor).collect()
}

fn write_file(path: &Path, gguf: &Gguf, tensors: &[Tensor]) {
    let metadata: Vec<_> = gguf.metadata().iter().map(|(key, value)| (key, value.clone())).collect();
    let tensor =
        |tensor: &Tensor| (tensor.name.clone(), tensor.shape.clone(), tensor.format, tensor.data.clone());
    let owned: Vec<_> = tensors.iter().map(tensor).collect();
    let tensors: Vec<_> = owned
        .iter()
        .map(|(name, shape, format, data)| TensorToWrite { name, shape, format: *format, data })
        .collect();
    std::fs::write(path, write(3, &metadata, &tensors)).unwrap();
}

fn numbers(name: String, numbers: &[f32]) -> Tensor {
    let data = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    Tensor { name, shape: vec![numbers.len()], format: Format::F32, data }
}

/// The powers of two that the factors of a tensor are.
fn powers(tensor: &Tensor) -> Vec<u8> {
    match tensor.shape.as_slice() {
        [n_experts, _, _] => (0..*n_experts).map(|expert| expert as u8 % 3).collect(),
        _ => vec![1 + tensor.data[9] % 2],
    }
}

/// Sets the scales of blocks: each of E4M3 with a small exponent, so much larger as `power` says.
fn set_scales(blocks: &mut [u8], seed: u64, power: u8) {
    let mut rng = Rng::with_seed(seed);
    for block in blocks.chunks_exact_mut(Format::NVFP4.block_bytes()) {
        // Three bits below the exponent.
        block[..4].iter_mut().for_each(|scale| *scale = rng.u8(8..24) + (power << 3));
    }
}

/// The files with factors and with larger scales, and with neither.
fn write_all(folder: &Path, architecture: &'static str, experts: (usize, usize)) -> [std::path::PathBuf; 3] {
    let tiny = TinyModel { architecture, experts, vocabulary: VOCABULARY, ..Default::default() };
    let gguf = Gguf::parse(&tiny.gguf(Format::NVFP4)).unwrap();
    let (mut factors, mut scales, mut neither) = (tensors(&gguf), tensors(&gguf), tensors(&gguf));
    let mut added = Vec::new();
    for (i, tensor) in tensors(&gguf).iter().enumerate().filter(|(_, tensor)| tensor.format == Format::NVFP4)
    {
        let powers = powers(tensor);
        let n_bytes = tensor.data.len() / powers.len();
        for (part, &power) in powers.iter().enumerate() {
            let bytes = part * n_bytes..(part + 1) * n_bytes;
            let seed = (i * N_EXPERTS + part) as u64;
            set_scales(&mut factors[i].data[bytes.clone()], seed, 0);
            set_scales(&mut neither[i].data[bytes.clone()], seed, 0);
            set_scales(&mut scales[i].data[bytes], seed, power);
        }
        let stem = tensor.name.strip_suffix(".weight").unwrap();
        let values: Vec<f32> = powers.iter().map(|&power| f32::from(1u8 << power)).collect();
        added.push(numbers(format!("{stem}.scale"), &values));
        // How activations would be rounded is not read.
        added.push(numbers(format!("{stem}.input_scale"), &vec![0.01; powers.len()]));
    }
    assert!(added.len() > 10, "{}", added.len());
    factors.extend(added);
    [("factors", factors), ("scales", scales), ("neither", neither)].map(|(name, tensors)| {
        let path = folder.join(format!("{name}.gguf"));
        write_file(&path, &gguf, &tensors);
        path
    })
}

const OPTIONS: LoadOptions = LoadOptions { prepare: None, n_threads: 2, quantize: None };

/// The bits of log-probabilities of all tokens after each of a prompt, on every backend.
fn logprobs(path: &Path) -> Vec<u32> {
    let model = load(path, &OPTIONS, &mut |_| {}).unwrap();
    let n = Some(VOCABULARY as u32);
    let sampling = SamplingParams { temperature: 0.0, logprobs: n, prompt_logprobs: n, ..Default::default() };
    let mut found = Vec::new();
    for backend in BACKENDS {
        let mut runner = model.runner(&RunnerOptions { backend, n_threads: 2, limits: LIMITS }).unwrap();
        let prompt: Vec<u32> = (0..40).map(|i| i * 37 % VOCABULARY as u32).collect();
        OneSequence::new(&prompt, Arc::new(sampling.clone())).prefill(&mut *runner, 33, |report| {
            let mut row = vec![f32::NAN; VOCABULARY];
            report.top.iter().for_each(|top| row[top.token as usize] = top.logprob);
            found.extend(row.into_iter().map(f32::to_bits));
        });
    }
    assert!(found.len() == 2 * 40 * VOCABULARY && found.iter().all(|bits| f32::from_bits(*bits).is_finite()));
    found
}

#[test]
fn factors_multiply_matrices_and_experts() {
    for (architecture, experts) in [("qwen3", (0, 0)), ("qwen3moe", (N_EXPERTS, 2))] {
        let folder = tempfile::tempdir().unwrap();
        let [factors, scales, neither] =
            write_all(folder.path(), architecture, experts).map(|path| logprobs(&path));
        assert!(factors == scales, "{architecture}");
        assert!(factors != neither, "{architecture}: without the factors the numbers are others");
    }
}

#[test]
fn factors_that_are_not_read_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = TinyModel { architecture: "qwen3moe", experts: (N_EXPERTS, 2), ..Default::default() };
    let path = folder.path().join("model.gguf");
    let error = |format: Format, name: &str, factors: &[f32]| {
        let gguf = Gguf::parse(&tiny.gguf(format)).unwrap();
        let mut tensors = tensors(&gguf);
        tensors.push(numbers(name.to_owned(), factors));
        write_file(&path, &gguf, &tensors);
        let model = load(&path, &OPTIONS, &mut |_| {}).map_err(|error| error.to_string());
        let options = RunnerOptions { backend: BACKENDS[1], n_threads: 1, limits: LIMITS };
        model
            .and_then(|model| model.runner(&options).map(|_| ()).map_err(|error| error.to_string()))
            .unwrap_err()
    };
    let of_format = error(Format::Q8_0, "blk.0.attn_q.scale", &[0.5]);
    assert!(of_format.contains("blk.0.attn_q.scale = a factor of a tensor in Q8_0"), "{of_format}");
    for (name, factors) in
        [("attn_q", &[1.0, 2.0][..]), ("ffn_up_exps", &[1.0]), ("ffn_down_exps", &[1.0; 5])]
    {
        let of_shape = error(Format::NVFP4, &format!("blk.0.{name}.scale"), factors);
        assert!(of_shape.contains(&format!("blk.0.{name}.scale")), "{of_shape}");
    }
}

/// No factor, not even an infinite one or NaN, is more than a wrong result.
#[test]
fn any_numbers_are_factors() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = TinyModel { architecture: "qwen3moe", experts: (N_EXPERTS, 2), ..Default::default() };
    let gguf = Gguf::parse(&tiny.gguf(Format::NVFP4)).unwrap();
    for factor in [0.0, -1.0, 1e-40, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::NAN] {
        let mut tensors = tensors(&gguf);
        tensors.push(numbers("blk.0.attn_q.scale".to_owned(), &[factor]));
        tensors.push(numbers("blk.0.ffn_up_exps.scale".to_owned(), &[1.0, factor, 1.0, factor]));
        let path = folder.path().join("model.gguf");
        write_file(&path, &gguf, &tensors);
        let model = load(&path, &OPTIONS, &mut |_| {}).unwrap();
        for backend in BACKENDS {
            let mut runner = model.runner(&RunnerOptions { backend, n_threads: 1, limits: LIMITS }).unwrap();
            let sampling = SamplingParams { max_tokens: 0, ..Default::default() };
            OneSequence::new(&[1, 2, 3], Arc::new(sampling)).compute_only(&mut *runner, 2);
        }
    }
}
