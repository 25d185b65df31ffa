//! Model files that are truncated while they are loaded, at random times and to random lengths: loading gives
//! an error that names the file, or the model if everything had been read; the process does not crash.

use std::fs::File;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use tempfile::TempDir;
use throng_kernels::quant::Format;
use throng_model::load::LoadError;
use throng_model::quantization::{CacheUse, Quantization, QuantizeOptions};
use throng_model::{BackendKind, LoadOptions, LoadedModel, load};
use throng_testkit::tiny_model::TinyModel;

const N_TRIALS: usize = 60;

fn options(quantize: Option<QuantizeOptions>) -> LoadOptions {
    LoadOptions { prepare: Some(BackendKind::Cpu), n_threads: 2, quantize }
}

fn cut(path: &Path, n_bytes: u64) {
    File::options().write(true).open(path).unwrap().set_len(n_bytes).unwrap();
}

/// A copy of the fixture's folder or a GGUF file: the path to load, and the file to truncate.
fn model(rng: &mut Rng) -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let gguf = folder.path().join("tiny.gguf");
    if rng.bool() {
        let format = [Format::F32, Format::BF16, Format::Q4_K][rng.usize(..3)];
        TinyModel { n_layers: 3, ..Default::default() }.write_gguf(format, &gguf).unwrap();
        return (folder, gguf.clone(), gguf);
    }
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture.join(name), folder.path().join(name)).unwrap();
    }
    let (path, weights) = (folder.path().to_owned(), folder.path().join("model.safetensors"));
    (folder, path, weights)
}

/// Loads it and truncates its weights to `n_bytes` at progress report number `moment`.
fn load_and_cut(
    path: &Path,
    weights: &Path,
    moment: usize,
    n_bytes: u64,
) -> (Result<LoadedModel, LoadError>, bool) {
    let mut n_reports = 0;
    let loaded = load(path, &options(None), &mut |_| {
        if n_reports == moment {
            cut(weights, n_bytes);
        }
        n_reports += 1;
    });
    (loaded, n_reports > moment)
}

#[test]
fn a_file_that_is_truncated_while_it_is_loaded_is_an_error() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(fastrand::u64(..));
    println!("SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let mut n_cut = 0;
    for trial in 0..N_TRIALS {
        let (_folder, path, weights) = model(&mut rng);
        let n_bytes = weights.metadata().unwrap().len();
        let (moment, n_left) = (rng.usize(..25), rng.u64(..n_bytes));
        let (loaded, was_cut) = load_and_cut(&path, &weights, moment, n_left);
        n_cut += usize::from(was_cut);
        match loaded {
            Ok(_) => assert!(!was_cut, "trial {trial}: cut to {n_left} of {n_bytes} at {moment}"),
            Err(LoadError::Changed(error)) => assert_eq!(error.path, weights, "trial {trial}"),
            Err(error) => panic!("trial {trial}: {error}"),
        }
    }
    assert!(n_cut > N_TRIALS / 4, "{n_cut} were cut while they were loaded");
}

#[test]
fn a_file_that_is_truncated_at_any_time_never_crashes_the_process() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(fastrand::u64(..));
    println!("SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    for _ in 0..N_TRIALS {
        let (_folder, path, weights) = model(&mut rng);
        let (n_left, n_spins) = (rng.u64(..weights.metadata().unwrap().len()), rng.u32(..3_000_000));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..n_spins).for_each(|_| std::hint::spin_loop());
                cut(&weights, n_left);
            });
            // Any outcome but a signal: a file that is truncated before it is opened is refused as broken.
            drop(load(&path, &options(None), &mut |_| {}));
        });
    }
}

#[test]
fn a_truncated_cache_of_quantized_weights_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    TinyModel { n_layers: 3, ..Default::default() }.write_gguf(Format::F32, &path).unwrap();
    let cache = folder.path().join("cache");
    std::fs::create_dir(&cache).unwrap();
    let quantize = || Some(QuantizeOptions { to: Quantization::Q8_0, cache: Some(cache.clone()) });
    let first = load(&path, &options(quantize()), &mut |_| {}).unwrap();
    assert_eq!(first.quantize_report().unwrap().cache, CacheUse::Written);
    let mut files = std::fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path());
    let kept = files.find(|path| path.extension().is_some_and(|extension| extension == "throng")).unwrap();
    let mut n_reports = 0;
    let again = load(&path, &options(quantize()), &mut |_| {
        if n_reports == 3 {
            cut(&kept, 100);
        }
        n_reports += 1;
    });
    assert_eq!(again.unwrap().quantize_report().unwrap().cache, CacheUse::Failed);
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_in_a_model_folder_are_refused() {
    let (folder, path, _) =
        std::iter::repeat_with(|| model(&mut Rng::new())).find(|(_, path, _)| path.is_dir()).unwrap();
    for (name, is_required) in [
        ("config.json", true),
        ("model.safetensors", true),
        ("model.safetensors.index.json", false),
        ("generation_config.json", false),
        ("tokenizer.json", false),
        ("tokenizer_config.json", false),
        ("chat_template.jinja", false),
        ("chat_template.json", false),
        ("additional_chat_templates/rag.jinja", false),
    ] {
        let file = folder.path().join(name);
        let aside = folder.path().join("aside");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        if is_required {
            std::fs::rename(&file, &aside).unwrap();
        }
        let make: [&dyn Fn(); 2] = [
            &|| assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success()),
            &|| std::os::unix::fs::symlink("/dev/zero", &file).unwrap(),
        ];
        for make in make {
            make();
            let error = load(&path, &options(None), &mut |_| {}).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("not a regular file"), "{name}: {error}");
            std::fs::remove_file(&file).unwrap();
        }
        if is_required {
            std::fs::rename(&aside, &file).unwrap();
        }
    }
    load(&path, &options(None), &mut |_| {}).unwrap();
    let gguf = folder.path().join("pipe.gguf");
    assert!(std::process::Command::new("mkfifo").arg(&gguf).status().unwrap().success());
    let error = load(&gguf, &options(None), &mut |_| {}).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("pipe.gguf") && error.contains("not a regular file"), "{error}");
}
