//! Blocks that other engines have asked for, until the executor or the disk gives them. Does not know how
//! they are sent.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use throng_core::scheduling::batch::ExportId;
use throng_core::scheduling::block_hash::BlockContent;
use tokio::sync::mpsc;

/// A block for another engine.
#[derive(Debug)]
pub struct ExportedBlock {
    /// Index of the block among those that were asked for.
    pub index: usize,
    /// Its content and bytes; `None` if it is not here.
    pub block: Option<(BlockContent, Vec<u8>)>,
}

/// Blocks of one call of [`EngineHandle::export_blocks`](crate::EngineHandle::export_blocks), in any order.
/// Ends early when the engine stops or loses its executor. Dropping it cancels the blocks not copied yet.
pub type ExportedBlocks = mpsc::UnboundedReceiver<ExportedBlock>;

/// Blocks that were asked for.
#[derive(Debug, Default)]
pub struct Exports {
    next: AtomicU64,
    awaited: Mutex<HashMap<ExportId, Awaited>>,
}

#[derive(Debug)]
struct Awaited {
    index: usize,
    to: mpsc::UnboundedSender<ExportedBlock>,
}

impl Exports {
    fn awaited(&self) -> MutexGuard<'_, HashMap<ExportId, Awaited>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers `n` blocks that are asked for together, and their receiver.
    pub fn begin(&self, n: usize) -> (Vec<ExportId>, ExportedBlocks) {
        let (to, receiver) = mpsc::unbounded_channel();
        let first = self.next.fetch_add(n as u64, Ordering::Relaxed);
        let ids: Vec<_> = (0..n as u64).map(|i| ExportId(first + i)).collect();
        let mut awaited = self.awaited();
        // Blocks whose receivers are gone may never be delivered.
        awaited.retain(|_, awaited| !awaited.to.is_closed());
        awaited.extend(ids.iter().enumerate().map(|(index, id)| (*id, Awaited { index, to: to.clone() })));
        (ids, receiver)
    }

    /// Whether somebody waits for a block.
    pub fn is_awaited(&self, export: ExportId) -> bool {
        self.awaited().get(&export).is_some_and(|awaited| !awaited.to.is_closed())
    }

    /// Gives a block to its receiver.
    pub fn deliver(&self, export: ExportId, block: Option<(BlockContent, Vec<u8>)>) {
        let awaited = self.awaited().remove(&export);
        if let Some(Awaited { index, to }) = awaited {
            let _ = to.send(ExportedBlock { index, block });
        }
    }

    /// Ends all: the executor that was to copy the blocks is gone.
    pub fn clear(&self) {
        self.awaited().clear();
    }
}
