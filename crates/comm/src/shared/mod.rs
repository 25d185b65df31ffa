//! Communication between processes of one host, or between threads, over shared memory. Does not know other
//! hosts.
//!
//! Collectives run in rounds. In a round each rank publishes at most [`layout::SLOT_WORDS`] words in one of
//! its two slots, and counts its own rounds. A rank publishes a round only after it has read all that it
//! needs of the round before; so a slot may be written again once all ranks have published the round after
//! it.

mod codec;
mod communicator;
mod layout;
mod lease;
mod mailbox;
mod waiting;

use std::fs::File;
use std::sync::Arc;

use throng_os::shared_memory::SharedMemory;

use crate::CommError;
pub use communicator::SharedCommunicator;
use layout::Layout;
use lease::Lease;

/// Maximum number of ranks over one shared memory.
pub const MAX_RANKS: usize = 32;

/// The memory of all ranks of a host and the groups that they form.
#[derive(Debug)]
pub struct SharedHost {
    memory: SharedMemory,
    layout: Layout,
}

impl SharedHost {
    /// Creates the memory for `n_ranks` ranks and for groups of them, each given by the ranks of its members
    /// in order. A group of all ranks is always added.
    ///
    /// # Errors
    /// When the system refuses.
    ///
    /// # Panics
    /// When there are no ranks or too many, or a group names a rank that is not there.
    pub fn create(n_ranks: usize, groups: &[Vec<usize>]) -> Result<Arc<Self>, CommError> {
        let layout = Layout::new(n_ranks, groups);
        Ok(Arc::new(Self { memory: SharedMemory::create(layout.sizes())?, layout }))
    }

    /// Opens the memory that another process created with the same arguments.
    ///
    /// # Errors
    /// When the file is not that memory.
    ///
    /// # Panics
    /// Panics of [`Self::create`].
    pub fn open(file: File, n_ranks: usize, groups: &[Vec<usize>]) -> Result<Arc<Self>, CommError> {
        let layout = Layout::new(n_ranks, groups);
        Ok(Arc::new(Self { memory: SharedMemory::open(file, layout.sizes())?, layout }))
    }

    /// The file that other processes open.
    pub fn file(&self) -> &File {
        self.memory.file()
    }

    /// Marks a rank as ended, so that all ranks that wait for it fail at once. Called by the process that
    /// sees the rank's process end.
    pub fn note_end(&self, rank: usize) {
        lease::note_end(self, rank);
    }

    /// Makes this process, or thread, a rank, until the returned value and all communicators made from it are
    /// dropped.
    ///
    /// # Errors
    /// When the system refuses a thread, which renews the rank's lease.
    pub fn join(self: &Arc<Self>, rank: usize) -> Result<Membership, CommError> {
        Ok(Membership { lease: Lease::begin(self, rank)?, host: Arc::clone(self), rank })
    }
}

/// A rank's place among the others.
#[derive(Debug)]
pub struct Membership {
    lease: Arc<Lease>,
    host: Arc<SharedHost>,
    rank: usize,
}

impl Membership {
    /// The communicator of all ranks.
    pub fn all(&self) -> SharedCommunicator {
        self.group(0).expect("all ranks are in the first group")
    }

    /// The communicator of group number `group_idx`, of those that the memory was created with counted from
    /// 1; `None` if the rank is not in it.
    pub fn group(&self, group_idx: usize) -> Option<SharedCommunicator> {
        SharedCommunicator::new(Arc::clone(&self.host), Arc::clone(&self.lease), group_idx, self.rank)
    }
}
