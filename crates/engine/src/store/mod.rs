//! A store for KV blocks in a file: blocks that leave the executor's memory, and those of a process that has
//! ended, come back from it instead of being computed again. What is saved and brought back is decided by the
//! core ([`throng_core::scheduling::block_store`]); the executor exports and imports bytes; threads read and
//! write the file. A store that is full, slow or damaged costs time and changes no answer.

mod executor;
mod slab;
mod threads;

use std::path::PathBuf;

use sha2::{Digest, Sha256};
use throng_core::engine::Input;
use throng_core::scheduling::block_exchange::BlockLayout;
use throng_core::scheduling::block_store::StoreCapacity;
use throng_core::scheduling::executor::{Executor, ExecutorError};
use tracing::{info, warn};

use crate::message::Inbox;
use executor::StoringExecutor;
use slab::{Slab, SlabSettings};
pub use threads::StoreThreads;

/// Bytes of blocks that are being read or wait in host memory: as many are copied into an executor before a
/// step, which lengthens the step for all.
const READ_BYTES: usize = 32 << 20;

/// Bytes of blocks that one step copies for being saved.
const SAVE_BYTES_PER_STEP: usize = 8 << 20;

/// Bytes of blocks that wait to be written.
const WRITE_BYTES: usize = 64 << 20;

/// Settings of a store.
#[derive(Debug, Clone)]
pub struct StoreSettings {
    /// Folder of all stores of this machine.
    pub folder: PathBuf,
    /// Name of the model, for the folder of its store.
    pub name: String,
    /// Maximum size of the file in bytes.
    pub max_bytes: u64,
    /// All that the bits of blocks depend on beside the layout of the executor's blocks, such as the build.
    pub identity: String,
}

/// An open store.
#[derive(Debug, Clone)]
pub struct OpenStore {
    layout: BlockLayout,
    threads: StoreThreads,
}

impl OpenStore {
    /// Opens the store for an executor, with the input that tells the core of it; `None`, with the reason in
    /// the log, where blocks of the executor cannot be kept or the file cannot be used. An engine serves
    /// without it.
    pub fn open(settings: &StoreSettings, executor: &dyn Executor, inbox: Inbox) -> Option<(Self, Input)> {
        let Some(layout) = executor.block_layout().filter(|layout| layout.n_bytes > 0) else {
            warn!("the blocks of this model cannot leave its memory: none are kept on disk");
            return None;
        };
        if executor.capacity().n_state_slots > 0 {
            warn!("this model has recurrent layers, whose states are not kept on disk: no blocks are");
            return None;
        }
        match Self::open_file(settings, layout, inbox) {
            Ok(opened) => Some(opened),
            Err(error) => {
                let folder = settings.folder.display();
                warn!(%error, "no blocks are kept on disk, since {folder} cannot be used");
                None
            }
        }
    }

    fn open_file(
        settings: &StoreSettings,
        layout: BlockLayout,
        inbox: Inbox,
    ) -> std::io::Result<(Self, Input)> {
        let slab = Slab::open(&SlabSettings {
            folder: &settings.folder,
            name: &settings.name,
            namespace: namespace(&settings.identity, &layout),
            max_bytes: settings.max_bytes,
            n_bytes: layout.n_bytes,
        })?;
        let kept = slab.kept()?;
        let of_bytes = |n_bytes: usize, least: usize| (n_bytes / layout.n_bytes).clamp(least, 512) as u32;
        let capacity = StoreCapacity {
            n_slots: slab.n_slots(),
            max_saves_per_step: of_bytes(SAVE_BYTES_PER_STEP, 1),
            max_writes: of_bytes(WRITE_BYTES, 4),
            max_reads: of_bytes(READ_BYTES, 2),
        };
        let path = slab.path().display();
        info!("{} of {} blocks are kept in {path}", kept.len(), slab.n_slots());
        let threads = StoreThreads::start(slab, inbox)?;
        Ok((Self { layout, threads }, Input::StoreOpened { capacity, kept: kept.into() }))
    }

    /// The threads of the store.
    pub fn threads(&self) -> &StoreThreads {
        &self.threads
    }

    /// Puts an executor beside the store.
    ///
    /// # Errors
    /// When its blocks have another layout than those of the first executor.
    pub fn around(&self, executor: Box<dyn Executor>) -> Result<Box<dyn Executor>, ExecutorError> {
        if executor.block_layout().as_ref() != Some(&self.layout) {
            return Err(ExecutorError::Device("its blocks are not those of the store".to_owned()));
        }
        Ok(Box::new(StoringExecutor::new(executor, self.layout.clone(), self.threads.clone())))
    }
}

/// Digest of all that the bits of blocks depend on.
fn namespace(identity: &str, layout: &BlockLayout) -> [u8; 32] {
    let mut hasher = Sha256::new_with_prefix(b"throng store");
    for field in [identity, &layout.model, &layout.kv_type, &layout.name] {
        hasher.update((field.len() as u64).to_le_bytes());
        hasher.update(field);
    }
    hasher.update((layout.n_bytes as u64).to_le_bytes());
    hasher.finalize().into()
}
