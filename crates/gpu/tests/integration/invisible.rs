//! Invisibility on the device: see [`throng_testkit::invisibility`]. Fewer compositions than on the CPU, as
//! the driver may be one in software.
//!
//! A failure prints its seed: `THRONG_SEED=<seed> cargo test -p throng-gpu --test integration invisible`.

use std::sync::Arc;

use throng_core::scheduling::executor::Executor;
use throng_kernels::quant::Format;
use throng_model::adapter::{AdapterLimits, AdapterStore, RandomAdapter};
use throng_model::kv_cache::KvDtype;
use throng_model::runner::ModelRunner;
use throng_model::{LoadOptions, load};
use throng_testkit::golden::fixtures;
use throng_testkit::invisibility::{LIMITS, N_ADAPTERS, Seen, check, check_model};
use throng_testkit::nightly::amount;
use throng_testkit::tiny_model::TinyModel;

use crate::harness::{backend, fast_device};

/// Requests that compositions are made of: of the tiny models, and of each family.
const N_REQUESTS: usize = 36;
const N_OF_FAMILY: usize = 6;

#[test]
fn results_do_not_depend_on_the_batch() {
    let Some(device) = fast_device() else { return };
    let narrow = TinyModel { hidden: 64, n_heads: 2, n_kv_heads: 1, feed_forward: 64, ..Default::default() };
    let two_layers =
        TinyModel { n_layers: 2, n_heads: 4, hidden: 128, feed_forward: 128, ..Default::default() };
    let experts = TinyModel { architecture: "qwen3moe", experts: (8, 2), ..narrow.clone() };
    let models = [
        (&narrow, Format::F32, KvDtype::F32),
        (&two_layers, Format::Q8_0, KvDtype::F16),
        (&TinyModel::default(), Format::Q4_K, KvDtype::Q8_0),
        (&experts, Format::Q8_0, KvDtype::F16),
        (&two_layers, Format::Q4_0, KvDtype::BF16),
    ];
    let mut seen = Seen::default();
    for (model, first) in models.into_iter().zip((0..).step_by(100)) {
        let seeds = first..first + amount(6, 40);
        check_model("gpu", |_| backend(&device), model, seeds, N_REQUESTS, &mut seen);
    }
    println!("{seen:?}");
    if std::env::var("THRONG_SEED").is_err() {
        assert!(seen.preemptions > 0 && seen.hit_tokens > 100 && seen.largest_batch > 10, "{seen:?}");
    }
}

/// Families of the golden test, with their own weights, in a few compositions: every fifth of them on each
/// change, all of them at night.
#[test]
fn no_family_depends_on_the_batch() {
    let Some(device) = fast_device() else { return };
    let mut seen = Seen::default();
    for folder in fixtures().into_iter().step_by(amount(5, 1) as usize) {
        let options = LoadOptions { prepare: None, n_threads: 2, quantize: None };
        let model = load(&folder, &options, &mut |_| {}).expect("the fixture opens");
        let Ok(weights) = model.weights_on(&backend(&device), &mut |_| {}) else { continue };
        let adapters = Arc::new(AdapterStore::default());
        let load = |seed| {
            let random = RandomAdapter { rank: 3 + 5 * seed as usize, seed };
            let (format, limits) = (model.adapter_format(), AdapterLimits::default());
            adapters.load_random(&backend(&device), &model.config, random, format, limits)
        };
        let _held: Vec<_> =
            (0..N_ADAPTERS as u64).map(|seed| load(seed).expect("an adapter loads")).collect();
        let runner = |_| -> Box<dyn Executor> {
            let (config, weights) = (Arc::clone(&model.config), Arc::clone(&weights));
            let runner = ModelRunner::new(backend(&device), config, weights, &LIMITS);
            Box::new(runner.expect("the family runs").with_adapters(Arc::clone(&adapters)))
        };
        check(&model.name, runner, 1000..1000 + amount(1, 4), N_OF_FAMILY, &mut seen);
    }
    println!("{seen:?}");
}
