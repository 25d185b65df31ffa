//! The MPI job in which `mpirun` started this process, as the environment tells: the process joins it before
//! it loads anything, and leaves it when it ends. Does not know the model.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result};
use throng_comm::mpi::{JoinError, MpiJob};
use throng_comm::{CommError, Communicator, Deadline, Loss};

use super::messages::{Host, receive};
use super::placement::{Place, places_on_hosts};
use crate::args::Command;
use crate::process::logging;

/// Variables by which launchers tell the number of processes.
const SIZES: [&str; 2] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];
/// Variable of launchers that tell it to the MPI library alone.
const PMIX_RANK: &str = "PMIX_RANK";
/// Exit status of a process that ends because another one of its job is lost: temporary failure.
const LOST: i32 = 75;
/// Longest time of ending in order after a loss.
const ENDING: Duration = Duration::from_secs(1);
/// Longest time until all processes of a job report their machine.
const REPORT_LIMIT: Duration = Duration::from_secs(300);

static JOB: OnceLock<Arc<MpiJob>> = OnceLock::new();
/// Whether a model is divided over the job.
static IS_CLAIMED: AtomicBool = AtomicBool::new(false);

/// Whether an MPI launcher started this process together with others.
fn is_launched() -> bool {
    let size = SIZES.iter().find_map(|name| std::env::var(name).ok()?.parse::<usize>().ok());
    size.map_or_else(|| std::env::var_os(PMIX_RANK).is_some(), |size| size > 1)
}

/// Joins the job that this process belongs to, if there is one and the command runs a model. Returns it if
/// this process is not its first one, which alone runs the command.
///
/// # Errors
/// When MPI cannot be started.
pub fn join(command: Option<&Command>) -> Result<Option<Arc<MpiJob>>> {
    let runs_model = matches!(
        command,
        None | Some(Command::Serve(_) | Command::Worker(_) | Command::Generate(_) | Command::Bench(_))
    );
    if !runs_model || !is_launched() {
        return Ok(None);
    }
    let job = match MpiJob::join(end_process) {
        Ok(job) if job.n_ranks() > 1 => JOB.get_or_init(|| job),
        Ok(job) => {
            job.leave();
            return Ok(None);
        }
        Err(error @ JoinError::NotBuilt) => {
            tracing::warn!("started by mpirun, and runs alone: {error}");
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    Ok((job.rank() > 0).then(|| Arc::clone(job)))
}

/// Leaves the job, if this process is in one.
pub fn leave() {
    if let Some(job) = JOB.get() {
        job.leave();
    }
}

/// The job of this process for a model to be divided over it; `None` if it is in none, or another model is
/// divided over it.
pub(super) fn claim() -> Option<Arc<MpiJob>> {
    let job = JOB.get()?;
    (!IS_CLAIMED.swap(true, Ordering::SeqCst)).then(|| Arc::clone(job))
}

/// Refuses a division by flags where mpirun has started processes that this build cannot use.
///
/// # Errors
/// When it has.
pub(super) fn check_built() -> Result<()> {
    if JOB.get().is_none() && is_launched() && cfg!(not(feature = "mpi")) {
        return Err(JoinError::NotBuilt.into());
    }
    Ok(())
}

/// Cores and threads of all processes, by the reports of their machines.
///
/// # Errors
/// When a rank is lost, or is of another version.
pub(super) fn places(all: &mut dyn Communicator, n_threads: Option<usize>) -> Result<(Vec<Place>, usize)> {
    let own = Host::own();
    let mut hosts = vec![own];
    for rank in 1..all.n_ranks() {
        let host: Host = receive(all, rank, Deadline::within(REPORT_LIMIT))
            .with_context(|| format!("no report of rank {rank}"))?;
        host.check_version(&hosts[0]).with_context(|| format!("rank {rank}"))?;
        hosts.push(host);
    }
    let mut names: Vec<&str> = hosts.iter().map(|host| &*host.name).collect();
    names.sort_unstable();
    names.dedup();
    let n_hosts = names.len();
    Ok((places_on_hosts(&hosts, n_threads), n_hosts))
}

/// Ends the process, and so the job, because a rank is lost. An orderly exit of rank 0 is no loss.
pub(super) fn end_process(error: &CommError) -> ! {
    let has_ended = matches!(error, CommError::PeerLost { rank: 0, how: Loss::Ended });
    // Whatever else holds the process, it ends; libraries may wait for the lost rank at exit.
    let forced = std::thread::Builder::new().name("throng-end".into());
    let _ = forced.spawn(|| {
        std::thread::sleep(ENDING);
        std::process::abort();
    });
    if !has_ended {
        logging::last_words(&format!(
            "error: {error}. An MPI job ends as a whole: its launcher, or its supervisor, starts it again"
        ));
    }
    std::process::exit(if has_ended { 0 } else { LOST });
}
