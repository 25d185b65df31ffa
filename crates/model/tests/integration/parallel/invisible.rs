//! The bits of a divided model depend on how it is divided alone: not on batch mates, chunks, cache hits,
//! preemption, threads and steps in flight.

use std::path::Path;

use fastrand::Rng;
use throng_core::request::Request;
use throng_core::scheduling::executor::Executor;
use throng_kernels::quant::Format;
use throng_model::kv_cache::KvDtype;
use throng_model::load::load_bytes;
use throng_model::parallel::Grid;
use throng_model::runner::RunnerLimits;
use throng_testkit::invisibility::{LIMITS, Seen, check_requests, requests};
use throng_testkit::nightly::amount;
use throng_testkit::tiny_model::TinyModel;

use super::{GRIDS, OPTIONS, Open, leader, open_folder};
use crate::models;

/// Families with what is divided in ways of their own.
const FAMILIES: [&str; 8] =
    ["gemma3", "deepseek-v3", "qwen3-next", "falcon-h1", "nemotron-h", "lfm2", "olmo2", "gpt-oss"];

/// Requests without adapters, which are not divided.
fn plain_requests() -> Vec<Request> {
    let all = requests(&mut Rng::with_seed(7)).into_iter();
    all.map(|request| Request { adapter: None, ..request }).collect()
}

/// Runs compositions over those of these arrangements that the model has.
fn check(
    name: &str,
    (open, limits): (&Open<'_>, RunnerLimits),
    grids: impl Iterator<Item = Grid>,
    n_seeds: u64,
    seen: &mut Seen,
) {
    let requests = plain_requests();
    for (i, grid) in (0..).zip(grids) {
        if leader(open, grid, 1, limits).is_err() {
            continue;
        }
        let make = |n_threads| -> Box<dyn Executor> {
            Box::new(leader(open, grid, n_threads, limits).expect("it was made before"))
        };
        let seeds = 3000 + i * n_seeds..3000 + (i + 1) * n_seeds;
        check_requests(&format!("{name} over {grid:?}"), make, &requests, seeds, seen);
    }
}

#[test]
fn no_family_depends_on_the_batch_over_several_ranks() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut seen = Seen::default();
    for (i, family) in FAMILIES.into_iter().enumerate() {
        // Each change runs every arrangement with two of the families.
        let grids = GRIDS.into_iter().cycle().skip(i).take(amount(1, 4) as usize);
        let open = || open_folder(&root.join(family));
        check(family, (&open, LIMITS), grids, amount(1, 4), &mut seen);
    }
    assert!(seen.most_in_flight > 1 || std::env::var("THRONG_SEED").is_ok(), "{seen:?}");
}

#[test]
fn quantized_models_do_not_depend_on_the_batch_over_several_ranks() {
    let narrow = models::narrow();
    let two_layers = models::two_layers();
    let experts = TinyModel { architecture: "qwen3moe", experts: (8, 2), ..narrow.clone() };
    let mut seen = Seen::default();
    for (model, format, kv_dtype) in [
        (&two_layers, Format::Q8_0, KvDtype::F16),
        (&experts, Format::Q8_0, KvDtype::F16),
        (&two_layers, Format::Q4_0, KvDtype::BF16),
    ] {
        let bytes = model.gguf(format);
        let open = || load_bytes("tiny", &bytes, &OPTIONS, &mut |_| {}).expect("it loads");
        let limits = RunnerLimits { kv_dtype, ..LIMITS };
        let name = format!("tiny {}", format.name());
        check(&name, (&open, limits), GRIDS.into_iter(), amount(2, 8), &mut seen);
    }
    assert!(seen.largest_batch > 4 || std::env::var("THRONG_SEED").is_ok(), "{seen:?}");
}
