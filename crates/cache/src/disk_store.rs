//! Contents on disk under names of 32 bytes: one file for each, with a digest, bounded in bytes, found again
//! after a restart. A file that is incomplete or was changed is ignored. Does not know the meaning of
//! contents.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

/// Beginning of a file, different for each format.
const MAGIC: &[u8; 16] = b"throng answer 1\n";
const DIGEST_BYTES: usize = 32;
/// Extension of files that are being written.
const UNFINISHED: &str = "tmp";
const LOCK: &str = "lock";

/// The name of a content.
pub(super) type Name = [u8; 32];

/// A folder of contents, used by one process at a time.
#[derive(Debug)]
pub(super) struct DiskStore {
    folder: PathBuf,
    max_bytes: u64,
    index: Mutex<Index>,
    /// Lock file, held as long as the store exists.
    _lock: File,
}

/// Files on disk, in the order of their last use.
#[derive(Debug, Default)]
struct Index {
    files: HashMap<Name, Known>,
    by_use: BTreeMap<u64, Name>,
    n_bytes: u64,
    n_uses: u64,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    n_bytes: u64,
    last_use: u64,
}

impl DiskStore {
    /// Opens a folder, and creates it if there is none. Files of an earlier process are found again, the
    /// latest written ones first if not all fit.
    ///
    /// # Errors
    /// When the folder cannot be used, or another process uses it.
    pub fn open(folder: &Path, max_bytes: u64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let lock = File::create(folder.join(LOCK))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                io::Error::new(io::ErrorKind::ResourceBusy, "another process uses it")
            }
            TryLockError::Error(error) => error,
        })?;
        let mut found: Vec<(SystemTime, Name, u64)> = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let (path, facts) = (entry.path(), entry.metadata()?);
            match name_of(&path) {
                Some(name) if facts.is_file() => found.push((facts.modified()?, name, facts.len())),
                _ if path.extension().is_some_and(|extension| extension == UNFINISHED) => {
                    fs::remove_file(&path)?
                }
                _ => {}
            }
        }
        found.sort_unstable();
        let store = Self { folder: folder.to_owned(), max_bytes, index: Mutex::default(), _lock: lock };
        for (_, name, n_bytes) in found {
            store.note(name, n_bytes);
        }
        Ok(store)
    }

    /// Whether there is a content with this name, without reading it.
    pub fn has(&self, name: &Name) -> bool {
        self.index().files.contains_key(name)
    }

    /// Number of files, and their bytes.
    pub fn size(&self) -> (usize, u64) {
        let index = self.index();
        (index.files.len(), index.n_bytes)
    }

    /// Content with this name that was written with the same `owner`. A damaged file is removed.
    pub fn read(&self, name: &Name, owner: &[u8]) -> Option<Vec<u8>> {
        if !self.index().touch(name) {
            return None;
        }
        let mut file = Vec::new();
        let read =
            File::open(self.path(name)).and_then(|opened| opened.take(self.max_bytes).read_to_end(&mut file));
        let content = read.ok().and_then(|_| content_of(file, owner));
        if content.is_none() {
            self.remove(name);
        }
        content
    }

    /// Writes a content, whole or not at all; the least recently used ones are removed to make room.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, name: &Name, owner: &[u8], content: &[u8]) -> io::Result<()> {
        let owner_bytes = u32::try_from(owner.len()).map_err(io::Error::other)?;
        let mut file = Vec::with_capacity(MAGIC.len() + 4 + owner.len() + content.len() + DIGEST_BYTES);
        file.extend_from_slice(MAGIC);
        file.extend_from_slice(&owner_bytes.to_le_bytes());
        file.extend_from_slice(owner);
        file.extend_from_slice(content);
        let digest = Sha256::digest(&file);
        file.extend_from_slice(&digest);
        if file.len() as u64 > self.max_bytes {
            return Ok(());
        }
        let unfinished = self.path(name).with_extension(UNFINISHED);
        let mut opened = File::create(&unfinished)?;
        opened.write_all(&file)?;
        drop(opened);
        fs::rename(&unfinished, self.path(name))?;
        self.note(*name, file.len() as u64);
        Ok(())
    }

    /// Adds a file to the index, and removes the least recently used ones until all fit.
    fn note(&self, name: Name, n_bytes: u64) {
        let mut removed = Vec::new();
        {
            let mut index = self.index();
            index.forget(&name);
            index.insert(name, n_bytes);
            while index.n_bytes > self.max_bytes {
                let Some(oldest) = index.by_use.first_key_value().map(|(_, name)| *name) else { break };
                index.forget(&oldest);
                removed.push(oldest);
            }
        }
        for name in removed {
            let _ = fs::remove_file(self.path(&name));
        }
    }

    fn remove(&self, name: &Name) {
        self.index().forget(name);
        let _ = fs::remove_file(self.path(name));
    }

    fn path(&self, name: &Name) -> PathBuf {
        self.folder.join(name.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Index {
    fn insert(&mut self, name: Name, n_bytes: u64) {
        self.n_uses += 1;
        self.files.insert(name, Known { n_bytes, last_use: self.n_uses });
        self.by_use.insert(self.n_uses, name);
        self.n_bytes += n_bytes;
    }

    fn forget(&mut self, name: &Name) {
        if let Some(known) = self.files.remove(name) {
            self.by_use.remove(&known.last_use);
            self.n_bytes -= known.n_bytes;
        }
    }

    /// Notes a use of a file; `false` if there is none.
    fn touch(&mut self, name: &Name) -> bool {
        let Some(known) = self.files.get(name).copied() else { return false };
        self.forget(name);
        self.insert(*name, known.n_bytes);
        true
    }
}

/// Name of the content in a file of the store.
fn name_of(path: &Path) -> Option<Name> {
    let text = path.file_name()?.to_str()?.as_bytes();
    let mut name = Name::default();
    if text.len() != 2 * name.len() {
        return None;
    }
    for (byte, digits) in name.iter_mut().zip(text.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(name)
}

/// Content of a file, if it is complete and belongs to `owner`.
fn content_of(mut file: Vec<u8>, owner: &[u8]) -> Option<Vec<u8>> {
    let end = file.len().checked_sub(DIGEST_BYTES)?;
    let start = MAGIC.len() + 4 + owner.len();
    let is_whole = Sha256::digest(&file[..end]).as_slice() == &file[end..];
    let head = file.get(..start).filter(|_| is_whole && start <= end)?;
    let (magic, rest) = head.split_at(MAGIC.len());
    let (length, stored) = rest.split_at(4);
    if magic != MAGIC || length != u32::try_from(owner.len()).ok()?.to_le_bytes() || stored != owner {
        return None;
    }
    file.truncate(end);
    Some(file.split_off(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: u8) -> Name {
        [n; 32]
    }

    #[test]
    fn contents_are_found_again_after_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = DiskStore::open(folder.path(), 1 << 20).expect("a store");
        assert!(DiskStore::open(folder.path(), 1 << 20).is_err(), "one process at a time");
        store.write(&name(1), b"owner", b"one").expect("written");
        store.write(&name(2), b"", b"").expect("written");
        assert_eq!(store.read(&name(1), b"owner"), Some(b"one".to_vec()));
        let size = store.size();
        drop(store);
        fs::write(folder.path().join("0101.tmp"), b"half").expect("written");
        fs::write(folder.path().join("notes.txt"), b"not ours").expect("written");
        let store = DiskStore::open(folder.path(), 1 << 20).expect("a store");
        assert_eq!(store.size(), size);
        assert_eq!(store.read(&name(1), b"owner"), Some(b"one".to_vec()));
        assert_eq!(store.read(&name(2), b""), Some(Vec::new()));
        assert!(!folder.path().join("0101.tmp").exists() && folder.path().join("notes.txt").exists());
    }

    #[test]
    fn another_owner_and_broken_files_have_no_content() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = DiskStore::open(folder.path(), 1 << 20).expect("a store");
        store.write(&name(1), b"owner", b"one").expect("written");
        assert_eq!(store.read(&name(1), b"other"), None);
        assert!(!store.has(&name(1)), "what nobody can own is removed");
        store.write(&name(1), b"owner", b"one").expect("written");
        let path = store.path(&name(1));
        let whole = fs::read(&path).expect("a file");
        for broken_at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[broken_at] ^= 1;
            for bytes in [&changed[..], &whole[..broken_at]] {
                store.write(&name(1), b"owner", b"one").expect("written");
                fs::write(&path, bytes).expect("written");
                assert_eq!(store.read(&name(1), b"owner"), None, "{broken_at}");
                assert!(!store.has(&name(1)) && !path.exists());
            }
        }
        assert_eq!(store.size(), (0, 0));
    }

    #[test]
    fn what_was_unused_for_longest_makes_room() {
        let folder = tempfile::tempdir().expect("a folder");
        let n_bytes = (MAGIC.len() + 4 + DIGEST_BYTES + 100) as u64;
        let store = DiskStore::open(folder.path(), 3 * n_bytes).expect("a store");
        for n in 1..=3 {
            store.write(&name(n), b"", &[n; 100]).expect("written");
        }
        assert!(store.read(&name(1), b"").is_some());
        store.write(&name(4), b"", &[4; 100]).expect("written");
        assert_eq!([1, 2, 3, 4].map(|n| store.has(&name(n))), [true, false, true, true]);
        assert_eq!(store.size(), (3, 3 * n_bytes));
        store.write(&name(5), b"", &[5; 1000]).expect("too large, and left out");
        assert_eq!(store.size(), (3, 3 * n_bytes));
        drop(store);
        let store = DiskStore::open(folder.path(), n_bytes).expect("a store");
        assert_eq!(store.size(), (1, n_bytes));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2, "a file and the lock");
    }
}
