//! This process's place in an MPI job. One thread starts MPI, renews the lease and leaves the job; others
//! communicate. Does not know what they say.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::traits::Communicator as _;

use super::communicator::MpiCommunicator;
use super::lease::Leases;
use super::members::Members;
use super::{EndProcess, JoinError};
use crate::Communicator;

/// Longest wait for operations in progress, and for other ranks, before the process ends without them.
const LEAVING: Duration = Duration::from_secs(5);
/// Interval of looks for the end of operations.
const LOOK: Duration = Duration::from_millis(1);

/// This process's place in an MPI job, until it leaves.
#[derive(Debug)]
pub struct MpiJob {
    members: Arc<Members>,
    /// Ends the thread of MPI when it is dropped; the receiver is told when that has left the job.
    ending: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl MpiJob {
    /// Joins the job that the process was started in. `end_process` is called, by any thread, when a rank is
    /// lost.
    ///
    /// # Errors
    /// When the MPI library cannot be started.
    pub fn join(end_process: EndProcess) -> Result<Arc<Self>, JoinError> {
        let (ending, end) = channel();
        let (left, has_left) = channel();
        let (joined, has_joined) = channel();
        let thread = std::thread::Builder::new().name("throng-mpi".into());
        thread.spawn(move || {
            take_part(end_process, &joined, &end);
            // Nobody waits for it any more after the limit.
            let _ = left.send(());
        })?;
        let members = has_joined.recv().map_err(|_| JoinError::NotStarted)??;
        Ok(Arc::new(Self { members, ending: Mutex::new(Some((ending, has_left))) }))
    }

    /// Number of this process in the job.
    pub fn rank(&self) -> usize {
        self.members.rank
    }

    /// Number of processes in the job.
    pub fn n_ranks(&self) -> usize {
        self.members.n_ranks()
    }

    /// The communicator of all ranks.
    pub fn all(self: &Arc<Self>) -> Box<dyn Communicator> {
        let all: Vec<usize> = (0..self.n_ranks()).collect();
        self.group(0, &all).expect("all ranks are in it")
    }

    /// The communicator of a group of ranks; `None` if this one is not in it. Groups of which one rank is a
    /// member have different numbers, counted from 1.
    pub fn group(self: &Arc<Self>, group_idx: usize, members: &[usize]) -> Option<Box<dyn Communicator>> {
        Some(Box::new(MpiCommunicator::new(&self.members, group_idx, members.to_vec())?))
    }

    /// Leaves the job, so that ranks that wait for this one are told. Ends once the others have left too, and
    /// after seconds at most.
    pub fn leave(&self) {
        self.members.begin_leaving();
        let ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((ending, has_left)) = ending else { return };
        let since = Instant::now();
        while self.members.is_active() && since.elapsed() < LEAVING {
            std::thread::sleep(LOOK);
        }
        if !self.members.is_active() {
            drop(ending);
            // Otherwise the process ends without the others.
            let _ = has_left.recv_timeout(LEAVING);
        }
    }
}

/// Runs MPI on this thread from its start to its end.
fn take_part(end_process: EndProcess, joined: &Sender<Result<Arc<Members>, JoinError>>, end: &Receiver<()>) {
    let refuse = |error: JoinError| {
        // Whoever joins waits for it.
        let _ = joined.send(Err(error));
    };
    let Some((universe, threading)) = mpi::initialize_with_threading(Threading::Multiple) else {
        return refuse(JoinError::JoinedBefore);
    };
    if threading != Threading::Multiple {
        return refuse(JoinError::OneThread);
    }
    let world = universe.world();
    let members = Arc::new(Members::new(world.rank() as usize, world.size() as usize, end_process));
    // Whoever joins waits for it.
    let _ = joined.send(Ok(Arc::clone(&members)));
    let mut leases = Leases::new(&members);
    leases.renew_until(end);
    leases.leave();
    // Waits for the other ranks.
    drop(universe);
}
