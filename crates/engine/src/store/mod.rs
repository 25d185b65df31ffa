//! Places for KV blocks outside of the executor's memory: a file, and other engines. Blocks that leave the
//! memory, those of a process that has ended, and those of an engine that served a conversation before come
//! back instead of being computed again. What is saved and brought back is decided by the core
//! ([`throng_core::scheduling::block_store`]); the executor exports and imports bytes; threads read and write
//! the file. A place that is full, slow, damaged or gone costs time and changes no answer.

mod executor;
mod exports;
mod pull;
mod slab;
mod threads;

use std::path::PathBuf;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use throng_core::engine::Input;
use throng_core::scheduling::batch::StoreSlot;
use throng_core::scheduling::block_exchange::BlockLayout;
use throng_core::scheduling::block_hash::BlockContent;
use throng_core::scheduling::block_store::StoreCapacity;
use throng_core::scheduling::executor::{Executor, ExecutorError};
use tracing::{info, warn};

use crate::message::Inbox;
use executor::StoringExecutor;
pub use exports::{ExportedBlock, ExportedBlocks};
pub use pull::{Pull, PullBlocks};
use slab::{Slab, SlabSettings};
pub use threads::StoreThreads;

/// Bytes of blocks that are being read or wait in host memory: as many are copied into an executor before a
/// step, which lengthens the step for all.
const READ_BYTES: usize = 32 << 20;

/// Maximum bytes of blocks that one step copies for saving.
const SAVE_BYTES_PER_STEP: usize = 8 << 20;

/// Bytes of blocks that wait to be written.
const WRITE_BYTES: usize = 64 << 20;

/// Bytes of blocks that other engines were asked for or that wait in host memory.
const PULL_BYTES: usize = 32 << 20;

/// Bytes of blocks that one step copies for other engines.
const EXPORT_BYTES_PER_STEP: usize = 8 << 20;

/// Bytes of blocks that other engines have asked for and that no step has copied.
const EXPORT_BYTES: usize = 64 << 20;

/// Places for blocks outside of the executor's memory.
#[derive(Debug, Clone, Default)]
pub struct Tiers {
    /// A store on disk.
    pub disk: Option<StoreSettings>,
    /// Other engines, which are also given the blocks of this one.
    pub peers: Option<Peers>,
}

/// Other engines of the same model.
#[derive(Debug, Clone)]
pub struct Peers {
    /// Asks them for blocks.
    pub puller: Arc<dyn PullBlocks>,
    /// Whether blocks are exchanged also where that costs speed: an executor that could have several steps in
    /// flight then has one.
    pub at_any_cost: bool,
}

/// Settings of a store.
#[derive(Debug, Clone)]
pub struct StoreSettings {
    /// Folder of all stores of this machine.
    pub folder: PathBuf,
    /// Name of the model, for the folder of its store.
    pub name: String,
    /// Maximum size of the file in bytes.
    pub max_bytes: u64,
    /// All that determines the bits of blocks beside the layout of the executor's blocks, such as the build.
    pub identity: String,
}

/// Open places for the blocks of an executor.
#[derive(Debug, Clone)]
pub struct OpenStore {
    layout: BlockLayout,
    threads: StoreThreads,
}

impl OpenStore {
    /// Opens the places for the blocks of an executor, with the input that tells the core of them; `None`,
    /// with the reason in the log, where there are none. An engine serves without them.
    pub fn open(tiers: &Tiers, executor: &dyn Executor, inbox: Inbox) -> Option<(Self, Input)> {
        let Some(layout) = executor.block_layout().filter(|layout| layout.n_bytes > 0) else {
            without(tiers, "the blocks of this model cannot leave its memory");
            return None;
        };
        let capacity = executor.capacity();
        if capacity.n_state_slots > 0 && layout.n_state_parts == 0 {
            without(tiers, "this model has recurrent layers, whose states cannot leave its memory");
            return None;
        }
        let slab = tiers.disk.as_ref().and_then(|settings| open_slab(settings, &layout));
        let is_free = slab.is_some() || capacity.max_steps_in_flight <= 1;
        let peers = tiers.peers.as_ref().filter(|peers| peers.at_any_cost || is_free);
        if slab.is_none() && peers.is_none() {
            return None;
        }
        let (slab, kept) = slab.unzip();
        let of_bytes = |n_bytes: usize, least: usize| (n_bytes / layout.n_bytes).clamp(least, 512) as u32;
        let of_peers = |n_bytes| if peers.is_some() { of_bytes(n_bytes, 2) } else { 0 };
        let capacity = StoreCapacity {
            n_slots: slab.as_ref().map_or(0, Slab::n_slots),
            max_saves_per_step: if slab.is_some() { of_bytes(SAVE_BYTES_PER_STEP, 1) } else { 0 },
            max_writes: of_bytes(WRITE_BYTES, 4),
            max_reads: of_bytes(READ_BYTES, 2),
            max_pulls: of_peers(PULL_BYTES),
            max_exports_per_step: of_peers(EXPORT_BYTES_PER_STEP),
            max_exports: of_peers(EXPORT_BYTES),
            block_bytes: layout.n_bytes as u64,
            n_state_parts: layout.n_state_parts,
        };
        let puller = peers.map(|peers| Arc::clone(&peers.puller));
        let started = StoreThreads::start(layout.clone(), slab, puller, inbox);
        let threads = started.inspect_err(|error| warn!(%error, "blocks stay in memory only")).ok()?;
        let kept = kept.unwrap_or_default().into();
        Some((Self { layout, threads }, Input::StoreOpened { capacity, kept }))
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

/// Tells why blocks stay in memory: a disk was asked for, other engines may just be there.
fn without(tiers: &Tiers, reason: &str) {
    if tiers.disk.is_some() {
        warn!("{reason}: no blocks are kept on disk");
    } else {
        info!("{reason}: no blocks are exchanged with other workers");
    }
}

/// The file of a store with its contents; `None`, with the reason in the log, if it cannot be used.
fn open_slab(
    settings: &StoreSettings,
    layout: &BlockLayout,
) -> Option<(Slab, Vec<(StoreSlot, BlockContent)>)> {
    let open = || {
        let slab = Slab::open(&SlabSettings {
            folder: &settings.folder,
            name: &settings.name,
            namespace: namespace(&settings.identity, layout),
            max_bytes: settings.max_bytes,
            n_bytes: layout.n_bytes,
            min_slots: 2 + 2 * layout.n_state_parts,
        })?;
        let kept = slab.kept()?;
        info!("{} of {} blocks are kept in {}", kept.len(), slab.n_slots(), slab.path().display());
        std::io::Result::Ok((slab, kept))
    };
    let folder = settings.folder.display();
    open()
        .inspect_err(|error| warn!(%error, "no blocks are kept on disk, since {folder} cannot be used"))
        .ok()
}

/// Digest of all that the bits of blocks depend on.
fn namespace(identity: &str, layout: &BlockLayout) -> [u8; 32] {
    let mut hasher = Sha256::new_with_prefix(b"throng store");
    for field in [identity, &layout.model, &layout.kv_type, &layout.name] {
        hasher.update((field.len() as u64).to_le_bytes());
        hasher.update(field);
    }
    hasher.update((layout.n_bytes as u64).to_le_bytes());
    hasher.update(layout.n_state_parts.to_le_bytes());
    hasher.finalize().into()
}
