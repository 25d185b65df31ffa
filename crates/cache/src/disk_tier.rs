//! Kept answers on disk, beside those in memory: written by a background thread, read back as events. Does
//! not know requests.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use throng_fleet::replica::{ReplicaEvent, received_event, sent_event};

use super::disk_store::{DiskStore, Name};
use super::key::CacheKey;
use super::replay::KeptAnswer;
use crate::config::ResponseCacheConfig;

/// Maximum number of answers that wait to be written; beyond it the newest are not written.
const MAX_WAITING: usize = 64;

/// Disk tier of the kept answers.
#[derive(Debug)]
pub struct DiskTier {
    store: Arc<DiskStore>,
    /// Queue to the writing thread; `None` once the tier is being dropped.
    waiting: Option<SyncSender<Waiting>>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Waiting {
    name: Name,
    owner: Vec<u8>,
    answer: Arc<KeptAnswer>,
}

impl DiskTier {
    /// Creates the tier of the configuration; `None` without a folder.
    ///
    /// # Errors
    /// When the folder cannot be used, or there is no cache in memory over it.
    pub fn of(config: &ResponseCacheConfig) -> io::Result<Option<Arc<Self>>> {
        let Some(folder) = &config.directory else { return Ok(None) };
        if config.max_memory_bytes == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "max_memory_bytes must be set beside it",
            ));
        }
        let opened = Self::open(folder, config.max_disk_bytes);
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
        opened.map(|tier| Some(Arc::new(tier))).map_err(named)
    }

    /// Opens a folder for at most `max_bytes` bytes.
    ///
    /// # Errors
    /// When the folder cannot be used, or another process uses it.
    pub(super) fn open(folder: &Path, max_bytes: u64) -> io::Result<Self> {
        let store = Arc::new(DiskStore::open(folder, max_bytes)?);
        let (waiting, to_write) = sync_channel(MAX_WAITING);
        let written = store.clone();
        let thread = std::thread::Builder::new().name("throng-cache".to_owned());
        let writer = thread.spawn(move || write(&written, &to_write))?;
        Ok(Self { store, waiting: Some(waiting), writer: Some(writer) })
    }

    /// Queues an answer for writing, if its key is valid beyond this process.
    pub(super) fn keep(&self, key: &CacheKey, answer: &Arc<KeptAnswer>) {
        if let (Some((name, owner)), Some(waiting)) = (key.durable(), &self.waiting) {
            let _ = waiting.try_send(Waiting { name, owner, answer: answer.clone() });
        }
    }

    /// Events of a kept answer.
    pub(super) async fn find(&self, key: &CacheKey) -> Option<Box<[ReplicaEvent]>> {
        let (name, owner) = key.durable().filter(|(name, _)| self.store.has(name))?;
        let store = self.store.clone();
        let read = move || events(&store.read(&name, &owner)?);
        tokio::task::spawn_blocking(read).await.ok().flatten()
    }

    /// Number of answers, and their bytes.
    pub fn size(&self) -> (usize, u64) {
        self.store.size()
    }
}

impl Drop for DiskTier {
    /// Writes the waiting answers, and releases the folder for another process.
    fn drop(&mut self) {
        self.waiting = None;
        let _ = self.writer.take().map(JoinHandle::join);
    }
}

fn write(store: &DiskStore, waiting: &Receiver<Waiting>) {
    for Waiting { name, owner, answer } in waiting {
        let mut lines = Vec::new();
        for event in &answer.events {
            let Ok(line) = throng_wire::line(&sent_event(event.clone())) else { continue };
            lines.extend(line);
        }
        if let Err(error) = store.write(&name, &owner, &lines) {
            tracing::warn!(%error, "an answer could not be written to the response cache on disk");
        }
    }
}

/// Parses written events; `None` if one of them is unknown.
fn events(lines: &[u8]) -> Option<Box<[ReplicaEvent]>> {
    let lines = lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| received_event(serde_json::from_slice(line).ok()?)).collect()
}
