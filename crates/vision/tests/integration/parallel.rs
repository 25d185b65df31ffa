//! Pictures of a model that is divided over ranks, which are threads here: rank 0 encodes them, and the others
//! read their features.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use throng_comm::shared::{Membership, SharedHost};
use throng_core::request::SamplingParams;
use throng_core::scheduling::executor::Executor;
use throng_kernels::threads::ThreadPool;
use throng_model::parallel::group::RankGroup;
use throng_model::parallel::{Grid, Leader, RankLinks, StageLinks, follow};
use throng_model::{BackendKind, LoadOptions, RunnerOptions, load};
use throng_vision::with_vision;

use crate::cases::{Folder, LIMITS, OneSequence};
use crate::families::folder;

const PATIENCE: Duration = Duration::from_secs(120);

fn links(membership: &Membership, grid: Grid, rank: usize) -> RankLinks {
    let [of_layers, of_stages] = grid.groups_of(rank).map(|group_idx| membership.group(group_idx + 1));
    let group = |ranks| RankGroup::new(Box::new(ranks), PATIENCE);
    let stages = |ranks| StageLinks::new(Box::new(ranks), PATIENCE);
    RankLinks {
        layers: of_layers.filter(|_| grid.n_ranks > 1).map(group),
        stages: of_stages.filter(|_| grid.n_stages > 1).map(stages),
    }
}

/// An executor of the model of a folder over all ranks.
fn leader(path: &Path, grid: Grid) -> impl Executor {
    let host = SharedHost::create(grid.n_all(), &grid.groups()).expect("there is memory");
    let options = RunnerOptions { backend: BackendKind::Cpu, n_threads: 1, limits: LIMITS };
    let part = |rank: usize| {
        let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
        let model = load(path, &options, &mut |_| {}).expect("the folder is a model");
        let model = with_vision(model, None).expect("the encoder is known");
        model.part(grid.part(rank)).expect("it is divided")
    };
    for rank in 1..grid.n_all() {
        let (host, part) = (Arc::clone(&host), part(rank));
        std::thread::spawn(move || {
            let membership = host.join(rank).expect("a thread");
            let links = links(&membership, grid, rank);
            let runner = part.rank_runner(&Arc::new(ThreadPool::new(1)), &options, links);
            follow(runner.expect("it fits"), &mut membership.all(), true).map(drop)
        });
    }
    let membership = host.join(0).expect("a thread");
    let links = links(&membership, grid, 0);
    let runner = part(0).rank_runner(&Arc::new(ThreadPool::new(1)), &options, links).expect("it fits");
    Leader::new(runner, Box::new(membership.all()), PATIENCE, Box::new(membership))
}

#[test]
fn divided_models_see_what_one_process_sees() {
    let Some(path) = folder("qwen3-vl") else { return };
    let cases = Folder::open(&path).cases();
    assert!(cases.iter().any(|case| case.media.is_some()));
    for grid in [(2, 1), (1, 2), (2, 2)].map(|(n_ranks, n_stages)| Grid { n_ranks, n_stages }) {
        let mut executor = leader(&path, grid);
        assert!(executor.capacity().takes_media && executor.capacity().n_stages == 1);
        for case in &cases {
            for chunk in [192, 7] {
                let sampling = SamplingParams { temperature: 0.0, ignore_eos: true, ..Default::default() };
                let mut sequence = OneSequence::new(case, Arc::new(sampling));
                sequence.prefill(&mut executor, chunk, |_| {});
                sequence.decode(&mut executor, case.greedy.len() - 1);
                assert_eq!(sequence.output(), case.greedy, "{} over {grid:?} by {chunk}", case.name);
            }
        }
    }
}
