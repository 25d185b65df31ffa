//! Quantized weights that are kept for the next start give the same bits, and the file is written again
//! whenever anything about it or the model has changed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::harness::{LIMITS, OneSequence};
use tempfile::TempDir;
use throng_core::request::SamplingParams;
use throng_kernels::quant::Format;
use throng_model::quantization::{CacheUse, Quantization, QuantizeOptions};
use throng_model::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, load};
use throng_testkit::tiny_model::TinyModel;

/// A float model and an empty folder for its quantized weights.
struct Place {
    folder: TempDir,
    to: Quantization,
}

impl Place {
    fn new(seed: u64, to: Quantization) -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap(), to };
        place.write_model(seed);
        place
    }

    fn write_model(&self, seed: u64) {
        TinyModel { seed, ..Default::default() }.write_gguf(Format::BF16, &self.model()).unwrap();
    }

    fn model(&self) -> PathBuf {
        self.folder.path().join("tiny.gguf")
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn load(&self, prepare: BackendKind, n_threads: usize) -> LoadedModel {
        let quantize = Some(QuantizeOptions { to: self.to, cache: Some(self.cache()) });
        load(&self.model(), &LoadOptions { prepare: Some(prepare), n_threads, quantize }, &mut |_| {})
            .unwrap()
    }

    /// The outcome of the cache, and the bits of log-probabilities.
    fn start(&self, n_threads: usize) -> (CacheUse, Vec<u32>) {
        let model = self.load(BackendKind::Cpu, n_threads);
        (model.quantize_report().unwrap().cache, bits(&model))
    }

    /// The files of quantized weights.
    fn kept(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.cache()).unwrap().map(|entry| entry.unwrap().path());
        let mut kept: Vec<_> =
            entries.filter(|path| path.extension().is_some_and(|e| e == "throng")).collect();
        kept.sort();
        kept
    }

    fn only_kept(&self) -> PathBuf {
        let [kept] = self.kept().try_into().expect("one file for a model and a format");
        kept
    }
}

fn bits(model: &LoadedModel) -> Vec<u32> {
    let sampling = SamplingParams { logprobs: Some(64), prompt_logprobs: Some(64), ..Default::default() };
    let options = RunnerOptions { backend: BackendKind::Cpu, n_threads: 1, limits: LIMITS };
    let mut runner = model.runner(&options).unwrap();
    let mut bits = Vec::new();
    OneSequence::new(&[5, 9, 33, 2, 60], Arc::new(sampling)).prefill(&mut *runner, 8, |report| {
        bits.extend(report.top.iter().flat_map(|top| [top.token, top.logprob.to_bits()]));
    });
    bits
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn the_next_start_reads_what_the_first_one_kept() {
    for to in [Quantization::Q8_0, Quantization::Q4_0, Quantization::Q4_K] {
        let place = Place::new(1, to);
        let (used, first) = place.start(2);
        assert_eq!(used, CacheUse::Written);
        let kept = std::fs::read(place.only_kept()).unwrap();
        for n_threads in [1, 2] {
            assert!(place.start(n_threads) == (CacheUse::Read, first.clone()), "{to} on {n_threads} threads");
        }
        assert!(std::fs::read(place.only_kept()).unwrap() == kept);
        std::fs::remove_file(place.only_kept()).unwrap();
        assert!(place.start(1) == (CacheUse::Written, first));
        assert!(std::fs::read(place.only_kept()).unwrap() == kept, "one thread writes the same file");
    }
}

#[test]
fn a_damaged_cache_is_written_again() {
    let place = Place::new(1, Quantization::Q4_K);
    let (_, first) = place.start(1);
    let path = place.only_kept();
    let kept = std::fs::read(&path).unwrap();
    let n = kept.len();
    let damages: [&dyn Fn(); 8] = [
        &|| flip(&path, 0),
        &|| flip(&path, n / 2),
        &|| flip(&path, n - 1),
        &|| flip(&path, n - 32),
        &|| flip(&path, n - 100),
        &|| std::fs::write(&path, &kept[..n / 2]).unwrap(),
        &|| std::fs::write(&path, []).unwrap(),
        &|| std::fs::write(&path, [&kept[..], b"more"].concat()).unwrap(),
    ];
    for (i, damage) in damages.iter().enumerate() {
        damage();
        assert!(place.start(1) == (CacheUse::Written, first.clone()), "damage {i}");
        assert!(std::fs::read(&path).unwrap() == kept, "damage {i} is repaired");
    }
    assert!(place.start(1) == (CacheUse::Read, first));
}

#[test]
fn a_changed_model_is_detected_even_with_the_old_modification_time() {
    let place = Place::new(1, Quantization::Q8_0);
    let modified = std::fs::metadata(place.model()).unwrap().modified().unwrap();
    let (_, first) = place.start(1);
    place.write_model(2);
    File::options().write(true).open(place.model()).unwrap().set_modified(modified).unwrap();
    let (used, second) = place.start(1);
    assert_eq!(used, CacheUse::Written);
    assert!(second != first);
    place.only_kept();
    assert!(place.start(1) == (CacheUse::Read, second));
}

#[test]
fn every_format_has_one_file_and_no_other_files_remain() {
    let mut place = Place::new(1, Quantization::Q8_0);
    place.start(1);
    place.to = Quantization::Q4_K;
    place.start(1);
    assert_eq!(place.kept().len(), 2);
    let all = std::fs::read_dir(place.cache()).unwrap().count();
    assert_eq!(all, 3, "and the lock");
    place.to = Quantization::Q8_0;
    assert_eq!(place.start(1).0, CacheUse::Read);
}

#[test]
fn a_cache_that_cannot_be_written_does_not_fail_the_start() {
    let place = Place::new(1, Quantization::Q4_0);
    std::fs::write(place.cache(), "a file where the folder should be").unwrap();
    let (used, first) = place.start(1);
    assert_eq!(used, CacheUse::Failed);
    std::fs::remove_file(place.cache()).unwrap();

    std::fs::create_dir(place.cache()).unwrap();
    let lock = File::create(place.cache().join("lock")).unwrap();
    lock.lock().unwrap();
    assert!(place.start(1) == (CacheUse::Failed, first.clone()), "another process is writing");
    drop(lock);
    std::fs::write(place.cache().join("partial"), "of a process that was killed").unwrap();
    assert!(place.start(1) == (CacheUse::Written, first.clone()));
    assert!(place.start(1) == (CacheUse::Read, first));
}

#[test]
fn the_reference_backend_writes_no_cache() {
    let place = Place::new(1, Quantization::Q8_0);
    let model = place.load(BackendKind::Reference, 1);
    assert_eq!(model.quantize_report().unwrap().cache, CacheUse::None);
    assert!(!place.cache().exists());
}
