//! The file of a store: a head, then slots of one size, each with a header and the bytes of a block. Headers
//! and bytes have checksums, so that data damaged by a crash, a full disk or a fault of the medium is
//! detected and not used. Does not know its callers.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use throng_core::scheduling::batch::{BLOCK_TOKENS, StoreSlot};
use throng_core::scheduling::block_hash::{BlockContent, BlockHash};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Marks of the file and of each slot, with the version of the format.
const FILE_MAGIC: [u8; 16] = *b"throng blocks 1\n";
const SLOT_MAGIC: [u8; 8] = *b"block 1\n";

/// Bytes before the first slot.
const HEAD_BYTES: u64 = 4096;

/// Bytes of a slot before those of its block.
const HEADER_BYTES: usize = 256;

/// Granularity of slots, so that each begins with a page of the file.
const PAGE_BYTES: u64 = 4096;

/// Maximum number of slots, which bounds the memory of a store's index: about 400 bytes a slot.
const MAX_SLOTS: u64 = 1 << 18;

/// Maximum number of processes that have stores of one name in one folder.
const MAX_PROCESSES: u32 = 16;
/// Time after its last write for which the store of another process of the same model is kept for the next
/// start of that process.
const KEPT_FOR: Duration = Duration::from_secs(86_400);

/// The open file. Its folder is locked as long as this value exists.
#[derive(Debug)]
pub struct Slab {
    file: File,
    path: PathBuf,
    slot_bytes: u64,
    n_bytes: usize,
    n_slots: u32,
    _lock: File,
}

/// Settings of a slab.
#[derive(Debug)]
pub struct SlabSettings<'a> {
    /// Folder of all stores.
    pub folder: &'a Path,
    /// Name of the model. Unused stores of the same name are removed.
    pub name: &'a str,
    /// Digest of all inputs that determine the bits of blocks.
    pub namespace: [u8; 32],
    /// Maximum size of the file.
    pub max_bytes: u64,
    /// Bytes of a block.
    pub n_bytes: usize,
    /// Minimum number of slots: those of two blocks, and of the states of two prompts.
    pub min_slots: u32,
}

impl Slab {
    /// Opens the store of a namespace, or creates it, and removes unused stores of the same name: those of
    /// other namespaces, and those that another process has not written to for a day.
    ///
    /// # Errors
    /// When the folder or the file cannot be created or locked, or has too few slots.
    pub fn open(settings: &SlabSettings<'_>) -> io::Result<Self> {
        let slot_bytes = ((HEADER_BYTES + settings.n_bytes) as u64).next_multiple_of(PAGE_BYTES);
        let n_slots = (settings.max_bytes.saturating_sub(HEAD_BYTES) / slot_bytes).min(MAX_SLOTS) as u32;
        if n_slots < settings.min_slots {
            let needed = HEAD_BYTES + u64::from(settings.min_slots) * slot_bytes;
            return Err(io::Error::other(format!("the smallest file needs {needed} bytes")));
        }
        DirBuilder::new().recursive(true).mode(0o700).create(settings.folder)?;
        let digest: String = settings.namespace[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let prefix = format!("{}-", file_name(settings.name));
        let (folder, lock) = claim(settings.folder, &format!("{prefix}{digest}"))?;
        remove_unused(settings.folder, (&prefix, &digest), &folder);
        let path = folder.join("blocks");
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        let mut head = Vec::with_capacity(64);
        head.extend_from_slice(&FILE_MAGIC);
        head.extend_from_slice(&settings.namespace);
        head.extend_from_slice(&slot_bytes.to_le_bytes());
        let mut found = vec![0; head.len()];
        if file.read_exact_at(&mut found, 0).is_err() || found != head {
            file.set_len(0)?;
            file.write_all_at(&head, 0)?;
        }
        let end = HEAD_BYTES + u64::from(n_slots) * slot_bytes;
        if file.metadata()?.len() > end {
            file.set_len(end)?;
        }
        Ok(Self { file, path, slot_bytes, n_bytes: settings.n_bytes, n_slots, _lock: lock })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of slots.
    pub fn n_slots(&self) -> u32 {
        self.n_slots
    }

    /// The contents of all slots whose headers are whole, the most recently written last.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn kept(&self) -> io::Result<Vec<(StoreSlot, BlockContent)>> {
        // The last one may end before its slot does.
        let n_begun = self.file.metadata()?.len().saturating_sub(HEAD_BYTES).div_ceil(self.slot_bytes);
        let mut kept = Vec::new();
        for slot in 0..n_begun.min(u64::from(self.n_slots)) as u32 {
            let mut header = [0; HEADER_BYTES];
            let read = self.file.read_exact_at(&mut header, self.offset(StoreSlot(slot)));
            if let Err(error) = read {
                if error.kind() == io::ErrorKind::UnexpectedEof {
                    break;
                }
                return Err(error);
            }
            if let Some(header) = Header::read(&header) {
                kept.push((header.written_ns, StoreSlot(slot), header.content));
            }
        }
        // The end of a prefix first, so that it gives way before the beginning.
        kept.sort_by_key(|(written_ns, _, content)| (*written_ns, u32::MAX - content.n_before));
        Ok(kept.into_iter().map(|(_, slot, content)| (slot, content)).collect())
    }

    /// Writes a block to a slot. The header is written last, so that a slot with a new header and old bytes
    /// requires a reordering by the system, which the checksum detects.
    ///
    /// # Errors
    /// When the file cannot be written. The slot then holds nothing.
    pub fn write(&self, slot: StoreSlot, content: &BlockContent, bytes: &[u8]) -> io::Result<()> {
        let written_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let header = Header { content: *content, written_ns, checksum: checksum(content, bytes) };
        let offset = self.offset(slot);
        let write = || {
            self.file.write_all_at(&[0; 8], offset)?;
            self.file.write_all_at(bytes, offset + HEADER_BYTES as u64)?;
            self.file.write_all_at(&header.bytes(), offset)
        };
        write().inspect_err(|_| {
            // A part of a block must not be taken for a whole one.
            let _ = self.file.write_all_at(&[0; 8], offset);
        })
    }

    /// Reads the block of this name from a slot into `bytes`.
    ///
    /// # Errors
    /// When the file cannot be read, the slot has another content, or its bytes are damaged.
    pub fn read(&self, slot: StoreSlot, hash: &BlockHash, bytes: &mut Vec<u8>) -> io::Result<BlockContent> {
        let mut header = [0; HEADER_BYTES];
        let offset = self.offset(slot);
        self.file.read_exact_at(&mut header, offset)?;
        let header = Header::read(&header).ok_or_else(|| io::Error::other("a damaged header"))?;
        if header.content.hash != *hash {
            return Err(io::Error::other("another content"));
        }
        bytes.resize(self.n_bytes, 0);
        self.file.read_exact_at(bytes, offset + HEADER_BYTES as u64)?;
        if checksum(&header.content, bytes) != header.checksum {
            return Err(io::Error::other("damaged bytes"));
        }
        Ok(header.content)
    }

    fn offset(&self, slot: StoreSlot) -> u64 {
        HEAD_BYTES + u64::from(slot.0) * self.slot_bytes
    }
}

/// Header of a slot.
#[derive(Debug)]
struct Header {
    content: BlockContent,
    /// Time of writing, in nanoseconds since 1970.
    written_ns: u64,
    checksum: u64,
}

impl Header {
    /// Bytes in a header that its own checksum covers.
    const N_CHECKED: usize = 8 + 4 + 32 + 32 + 4 * BLOCK_TOKENS + 8 + 8;

    fn bytes(&self) -> [u8; HEADER_BYTES] {
        let BlockContent { hash, parent, tokens, n_before } = &self.content;
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&SLOT_MAGIC);
        bytes.extend_from_slice(&n_before.to_le_bytes());
        bytes.extend_from_slice(hash.as_bytes());
        bytes.extend_from_slice(parent.as_bytes());
        tokens.iter().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
        bytes.extend_from_slice(&self.written_ns.to_le_bytes());
        bytes.extend_from_slice(&self.checksum.to_le_bytes());
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        let mut header = [0; HEADER_BYTES];
        header[..bytes.len()].copy_from_slice(&bytes);
        header
    }

    /// Reads a header; `None` if it is damaged.
    fn read(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let (checked, rest) = bytes.split_at(Self::N_CHECKED);
        if xxh3_64(checked).to_le_bytes() != rest[..8] {
            return None;
        }
        let mut rest = checked.strip_prefix(&SLOT_MAGIC)?;
        let n_before = u32::from_le_bytes(take(&mut rest)?);
        let (hash, parent) =
            (BlockHash::from_bytes(take(&mut rest)?), BlockHash::from_bytes(take(&mut rest)?));
        let mut tokens = [0; BLOCK_TOKENS];
        for token in &mut tokens {
            *token = u32::from_le_bytes(take(&mut rest)?);
        }
        let written_ns = u64::from_le_bytes(take(&mut rest)?);
        let checksum = u64::from_le_bytes(take(&mut rest)?);
        Some(Self { content: BlockContent { hash, parent, tokens, n_before }, written_ns, checksum })
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

/// Checksum of a block's bytes, which differs for other names.
fn checksum(content: &BlockContent, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, xxh3_64(content.hash.as_bytes()))
}

/// A name as part of a file name.
fn file_name(name: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "._".contains(c) { c } else { '_' };
    let name: String = name.chars().take(80).map(allowed).collect();
    name.trim_start_matches('.').to_owned()
}

/// Creates and locks the first folder of this name, or of this name with a number, that no process uses.
fn claim(folder: &Path, name: &str) -> io::Result<(PathBuf, File)> {
    for number in 1..=MAX_PROCESSES {
        let own = if number == 1 { folder.join(name) } else { folder.join(format!("{name}.{number}")) };
        DirBuilder::new().recursive(true).mode(0o700).create(&own)?;
        if let Some(lock) = lock(&own)? {
            return Ok((own, lock));
        }
    }
    Err(io::Error::other(format!("{MAX_PROCESSES} processes use the store of this model")))
}

fn lock(folder: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(folder.join("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Removes the stores of a name that no process uses, except one's own and those with the own digest that
/// were written lately. A store that cannot be removed stays.
fn remove_unused(folder: &Path, (prefix, own_digest): (&str, &str), own: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(digest) = name.strip_prefix(prefix).map(|rest| rest.split('.').next().unwrap_or_default())
        else {
            continue;
        };
        let is_digest = digest.len() == 16 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_kept = digest == own_digest && was_written_lately(&path);
        if path == own || is_kept || !is_digest || !path.join("lock").exists() {
            continue;
        }
        if matches!(lock(&path), Ok(Some(_))) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

fn was_written_lately(store: &Path) -> bool {
    let written = fs::metadata(store.join("blocks")).and_then(|blocks| blocks.modified());
    written.is_ok_and(|written| written.elapsed().is_ok_and(|age| age < KEPT_FOR))
}
