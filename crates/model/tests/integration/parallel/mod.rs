//! Models over several ranks, which are threads over one shared memory.
#![cfg(target_os = "linux")]

mod golden;
mod invisible;
mod losses;
mod memory;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use throng_comm::Communicator;
use throng_comm::shared::{Membership, SharedHost};
use throng_kernels::threads::ThreadPool;
use throng_model::cpu_backend::CpuBackend;
use throng_model::load::LoadError;
use throng_model::parallel::group::RankGroup;
use throng_model::parallel::{Grid, Leader, RankLinks, StageLinks, follow};
use throng_model::runner::RunnerLimits;
use throng_model::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, load};

/// The arrangements that the tests run.
pub const GRIDS: [Grid; 4] = [
    Grid { n_ranks: 2, n_stages: 1 },
    Grid { n_ranks: 3, n_stages: 1 },
    Grid { n_ranks: 1, n_stages: 2 },
    Grid { n_ranks: 2, n_stages: 2 },
];

const OPTIONS: LoadOptions = LoadOptions { prepare: None, n_threads: 1, quantize: None };

/// Longer than any exchange of the tests takes on any machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Opens a model, once for each rank.
pub type Open<'a> = dyn Fn() -> LoadedModel + Sync + 'a;

/// The part of a rank.
pub fn part_of(open: &Open<'_>, grid: Grid, rank: usize) -> Result<LoadedModel, LoadError> {
    open().part(grid.part(rank))
}

/// What connects a rank with the others.
fn links(membership: &Membership, grid: Grid, rank: usize) -> RankLinks {
    let [of_layers, of_stages] = grid.groups_of(rank).map(|group_idx| membership.group(group_idx + 1));
    let group = |ranks| RankGroup::new(Box::new(ranks), PATIENCE);
    let stages = |ranks| StageLinks::new(Box::new(ranks), PATIENCE);
    RankLinks {
        layers: of_layers.filter(|_| grid.n_ranks > 1).map(group),
        stages: of_stages.filter(|_| grid.n_stages > 1).map(stages),
    }
}

/// An executor over all ranks, whose other ranks are threads that end with it.
///
/// # Errors
/// When the model has no such parts.
pub fn leader(
    open: &Open<'_>,
    grid: Grid,
    n_threads: usize,
    limits: RunnerLimits,
) -> Result<Leader<CpuBackend>, LoadError> {
    let parts = (0..grid.n_all()).map(|rank| part_of(open, grid, rank));
    let mut parts = parts.collect::<Result<Vec<_>, _>>()?;
    let host = SharedHost::create(grid.n_all(), &grid.groups()).expect("there is memory");
    let options = RunnerOptions { backend: BackendKind::Cpu, n_threads, limits };
    for rank in (1..grid.n_all()).rev() {
        let (host, part) = (Arc::clone(&host), parts.pop().expect("a part for each rank"));
        std::thread::spawn(move || {
            let membership = host.join(rank).expect("a thread");
            let threads = Arc::new(ThreadPool::new(n_threads));
            let links = links(&membership, grid, rank);
            let runner = part.rank_runner(&threads, &options, links).expect("it fits");
            follow(runner, &mut membership.all(), false).map(drop)
        });
    }
    let membership = host.join(0).expect("a thread");
    let links = links(&membership, grid, 0);
    let runner = parts[0].rank_runner(&Arc::new(ThreadPool::new(n_threads)), &options, links)?;
    let all: Box<dyn Communicator> = Box::new(membership.all());
    Ok(Leader::new(runner, all, PATIENCE, Box::new(membership)))
}

/// Opens the model of a folder.
pub fn open_folder(folder: &Path) -> LoadedModel {
    load(folder, &OPTIONS, &mut |_| {}).expect("a golden model")
}
