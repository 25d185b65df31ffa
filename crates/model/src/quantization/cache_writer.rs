//! Writes quantized weights to their file, beside the old one until the new one is complete. Does not know
//! how they are quantized.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use throng_kernels::quant::Format;
use xxhash_rust::xxh3::xxh3_128;

use super::cache::{CachePlace, Header, KeptMatrix, MAGIC, SECTION, digest};
use crate::backend::Backend;
use throng_checkpoint::TensorView;

/// A file that is being written. If it is dropped before its end, only the empty lock file remains.
pub(super) struct CacheWriter {
    place: PathBuf,
    partial: PathBuf,
    file: File,
    header: Header,
    /// Held while the file is written: one writer a folder, so that two processes never write the same file.
    _lock: File,
}

impl CacheWriter {
    /// # Errors
    /// When the folder cannot be created or written to, or another process writes to it.
    pub(super) fn create(place: &CachePlace) -> io::Result<Self> {
        let folder = place.path.parent().unwrap_or(std::path::Path::new("."));
        std::fs::create_dir_all(folder)?;
        let lock = File::create(folder.join("lock"))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::other("another process is writing there"),
            TryLockError::Error(error) => error,
        })?;
        let partial = folder.join("partial");
        Ok(Self {
            file: File::create(&partial)?,
            place: place.path.clone(),
            partial,
            header: Header { identity: place.identity.clone(), matrices: Vec::new() },
            _lock: lock,
        })
    }

    /// Adds the parts of the next matrix.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(super) fn add<B: Backend>(
        &mut self,
        parts: &[TensorView<'_>],
        formats: &[Format],
        packed: &[&[u8]],
        backend: &B,
    ) -> io::Result<()> {
        for ((part, format), bytes) in parts.iter().zip(formats).zip(packed) {
            self.header.matrices.push(KeptMatrix {
                name: part.name.to_owned(),
                format: format.name().to_owned(),
                shape: part.shape.to_vec(),
                n_bytes: bytes.len(),
                digests: digests(bytes, backend),
            });
            self.file.write_all(bytes)?;
        }
        Ok(())
    }

    /// Renames the file once it is on disk.
    ///
    /// # Errors
    /// When it cannot be written or renamed.
    pub(super) fn finish(mut self) -> io::Result<()> {
        let json = serde_json::to_vec(&self.header)?;
        self.file.write_all(&json)?;
        self.file.write_all(&MAGIC)?;
        self.file.write_all(&(json.len() as u64).to_le_bytes())?;
        self.file.write_all(&xxh3_128(&json).to_le_bytes())?;
        self.file.sync_all()?;
        std::fs::rename(&self.partial, &self.place)?;
        #[cfg(unix)]
        if let Some(folder) = self.place.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    }
}

impl Drop for CacheWriter {
    fn drop(&mut self) {
        // After `finish` there is none; a file that cannot be removed is overwritten by the next writer.
        let _ = std::fs::remove_file(&self.partial);
    }
}

/// The digests of all sections, on the backend's threads.
fn digests<B: Backend>(bytes: &[u8], backend: &B) -> Vec<String> {
    let sections: Vec<&[u8]> = bytes.chunks(SECTION).collect();
    let next = AtomicUsize::new(0);
    let found: Vec<Mutex<String>> = sections.iter().map(|_| Mutex::default()).collect();
    backend.host_threads().run(&|_| {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let (Some(section), Some(found)) = (sections.get(i), found.get(i)) else { break };
            *found.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = digest(section);
        }
    });
    found
        .into_iter()
        .map(|found| found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
        .collect()
}
