//! A process with a part of a model: it opens the model that rank 0 names and follows rank 0's steps until
//! that has ended. Does not know requests.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use throng_comm::mpi::MpiJob;
use throng_comm::shared::SharedHost;
use throng_comm::{CommError, Deadline};
use throng_kernels::threads::ThreadPool;
use throng_model::decoder::weights::LoadProgress;
use throng_model::load::{LoadedModel, RunnerOptions};
use throng_model::parallel::{Grid, probe};
use throng_model::runner::{FollowError, follow};
use throng_os::affinity::bind_to;

use super::START_LIMIT;
use super::members::Members;
use super::messages::{Answer, Host, KV_DTYPES, Loaded, Order, Setup, receive, send};
use crate::args::RankArgs;
use crate::error_chain::in_full;
use crate::process::core_dumps;
use crate::process::signals::Signals;
use crate::running::{backend, open};

/// Interval between checks for the end of rank 0's process.
const LOOK: Duration = Duration::from_millis(200);

/// Runs the command.
///
/// # Errors
/// When the process was not started by a server, or rank 0's step cannot be followed.
pub fn run(arguments: &RankArgs) -> Result<()> {
    end_with_parent().context("cannot start a thread")?;
    // A service manager signals all processes; those that follow are needed until the server has ended.
    let _signals = Signals::listen().context("cannot receive signals")?;
    let grid = Grid { n_ranks: arguments.ranks, n_stages: arguments.stages };
    let host = inherited(grid)?;
    let rank = arguments.rank;
    follow_rank_0(&Members::Shared(host.join(rank)?), rank)
}

/// Runs as a rank of an MPI job that is not its first one.
///
/// # Errors
/// When rank 0's step cannot be followed.
pub fn run_in_job(job: Arc<MpiJob>) -> Result<()> {
    let _signals = Signals::listen().context("cannot receive signals")?;
    let rank = job.rank();
    let members = Members::Job(job);
    send(&mut *members.all(), 0, &Host::own(), Deadline::within(START_LIMIT))?;
    let ended = follow_rank_0(&members, rank);
    // Rank 0 says why it has ended.
    match ended {
        Err(error) if matches!(error.downcast_ref(), Some(CommError::PeerLost { rank: 0, .. })) => Ok(()),
        ended => ended,
    }
}

fn follow_rank_0(members: &Members, rank: usize) -> Result<()> {
    core_dumps::forbid();
    let mut all = members.all();
    let by = || Deadline::within(START_LIMIT);
    let setup: Setup = receive(&mut *all, 0, by())?;
    let grid = setup.grid();
    if !setup.cores.is_empty() {
        bind_to(&setup.cores);
    }
    let loaded = load(&setup, grid, rank);
    let answer: Answer<Loaded> = loaded.as_ref().map(|(_, loaded)| *loaded).map_err(in_full);
    send(&mut *all, 0, &answer, by())?;
    let (model, _) = loaded?;
    let patience = Duration::from_millis(setup.patience_ms);
    let mut links = members.links(grid, rank, patience);
    let section = setup.section()?;
    let limits = loop {
        match receive(&mut *all, 0, by())? {
            Order::Run(limits) => break limits,
            Order::Measure { n_elements } => {
                let bytes_per_s = probe::read(&mut *all, &Arc::new(ThreadPool::new(setup.n_threads)))?;
                probe::sum(&mut links, n_elements);
                if rank == 1 {
                    probe::pong(&mut *all, n_elements)?;
                }
                send(&mut *all, 0, &bytes_per_s, by())?;
            }
        }
    };
    let options =
        RunnerOptions { backend: backend(&section), n_threads: setup.n_threads, limits: limits.limits()? };
    let runner = model.rank_runner(&options.threads(), &options, links);
    let answer: Answer<()> = runner.as_ref().map(drop).map_err(ToString::to_string);
    send(&mut *all, 0, &answer, by())?;
    match follow(runner?, &mut *all, model.media().is_some()) {
        Err(FollowError::Leader(_)) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(never) => match never {},
    }
}

fn load(setup: &Setup, grid: Grid, rank: usize) -> Result<(LoadedModel, Loaded)> {
    let section = setup.section()?;
    let (_, model) = open(&section)?;
    let model = model.part(grid.part(rank))?;
    let mut weight_bytes = 0;
    let mut note = |progress: LoadProgress| weight_bytes = progress.done_bytes;
    model.prepare(backend(&section), setup.n_threads, &mut note)?;
    let block_bytes = KV_DTYPES.map(|dtype| model.kv_layout(dtype, 1).bytes().map(|bytes| bytes as u64));
    let state_bytes = model.state_bytes().context("the recurrent state is too large")? as u64;
    Ok((model, Loaded { block_bytes, state_bytes, weight_bytes }))
}

/// Ends this process when its parent has ended.
#[cfg(target_os = "linux")]
fn end_with_parent() -> std::io::Result<()> {
    let parent = rustix::process::getppid();
    let watch = move || {
        while rustix::process::getppid() == parent {
            std::thread::sleep(LOOK);
        }
        std::process::exit(0);
    };
    std::thread::Builder::new().name("throng-parent".into()).spawn(watch).map(drop)
}

/// The memory that the parent process shares.
#[cfg(target_os = "linux")]
fn inherited(grid: Grid) -> Result<Arc<SharedHost>> {
    // Opened again by its name, which needs no unsafe code.
    let path = format!("/proc/self/fd/{}", super::children::MEMORY_FD);
    let file = std::fs::File::options().read(true).write(true).open(path);
    let file = file.context("throng rank is started by a server that divides a model")?;
    SharedHost::open(file, grid.n_all(), &grid.groups()).context("no memory of a server")
}

#[cfg(not(target_os = "linux"))]
fn end_with_parent() -> std::io::Result<()> {
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn inherited(_grid: Grid) -> Result<Arc<SharedHost>> {
    anyhow::bail!("models are divided on Linux only")
}
