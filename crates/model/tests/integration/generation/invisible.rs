//! Invisibility on the backends of this crate: see [`throng_testkit::invisibility`].
//!
//! A failure prints its seed: `THRONG_SEED=<seed> cargo test -p throng-model --test integration invisible`.

use std::path::Path;

use crate::models;
use throng_core::request::AdapterId;
use throng_kernels::Isa;
use throng_kernels::quant::Format;
use throng_model::adapter::{AdapterLimits, LoadedAdapter, RandomAdapter};
use throng_model::cpu_backend::CpuBackend;
use throng_model::kv_cache::KvDtype;
use throng_model::reference_backend::ReferenceBackend;
use throng_model::{BackendKind, LoadOptions, RunnerOptions, load};
use throng_testkit::invisibility::{LIMITS, N_ADAPTERS, N_REQUESTS, Seen, check, check_model};
use throng_testkit::nightly::amount;
use throng_testkit::tiny_model::TinyModel;

/// Every family of the golden test, with its own weights, in a few compositions.
#[test]
fn no_family_depends_on_the_batch() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let folders = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<_> = folders.filter(|path| path.join("expected.safetensors").exists()).collect();
    folders.sort();
    let mut seen = Seen::default();
    for folder in folders {
        let options = LoadOptions { prepare: None, n_threads: 2, quantize: None };
        let model = load(&folder, &options, &mut |_| {}).unwrap();
        let random = |seed| RandomAdapter { rank: 3 + 5 * seed as usize, seed };
        let load = |seed| model.load_random_adapter(BackendKind::Cpu, random(seed), AdapterLimits::default());
        let held: Vec<LoadedAdapter> = (0..N_ADAPTERS as u64).map(|seed| load(seed).unwrap()).collect();
        assert!(held.iter().zip(0..).all(|(adapter, id)| adapter.id == AdapterId(id)));
        let runner = |n_threads| {
            model.runner(&RunnerOptions { backend: BackendKind::Cpu, n_threads, limits: LIMITS }).unwrap()
        };
        check(&model.name, runner, 1000..1000 + amount(2, 6), N_REQUESTS, &mut seen);
    }
    println!("{seen:?}");
}

#[test]
fn results_do_not_depend_on_the_batch() {
    let narrow = models::narrow();
    let two_layers = models::two_layers();
    let experts = TinyModel { architecture: "qwen3moe", experts: (8, 2), ..narrow.clone() };
    let models = [
        (&narrow, Format::F32, KvDtype::F32),
        (&two_layers, Format::Q8_0, KvDtype::F16),
        (&TinyModel::default(), Format::Q4_K, KvDtype::Q8_0),
        (&experts, Format::Q8_0, KvDtype::F16),
        (&two_layers, Format::Q4_0, KvDtype::BF16),
    ];
    let (mut seen, mut first) = (Seen::default(), 0);
    let mut next = |n: u64| {
        first += n;
        first - n..first
    };
    check_model("reference", |_| ReferenceBackend, models[0], next(amount(20, 40)), N_REQUESTS, &mut seen);
    for isa in Isa::available() {
        let n = if isa == Isa::best() { amount(50, 200) } else { amount(8, 25) };
        for model in models {
            check_model(
                isa.name(),
                |n_threads| CpuBackend::with_isa(n_threads, isa),
                model,
                next(n),
                N_REQUESTS,
                &mut seen,
            );
        }
    }
    println!("{seen:?}");
    if std::env::var("THRONG_SEED").is_err() {
        assert!(seen.preemptions > 50 && seen.hit_tokens > 1000 && seen.largest_batch == 64, "{seen:?}");
    }
}
