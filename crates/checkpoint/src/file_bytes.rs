//! The bytes of a weight file, mapped or in memory. Does not know their format.

use std::io;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};

use throng_os::mapped_file::{FileStamp, MappedFile};

use super::FileChanged;

/// The bytes of a weight file: mapped, or in memory (tests and fuzzing).
#[derive(Debug)]
pub(super) enum FileBytes {
    Mapped(PathBuf, MappedFile),
    Owned(Vec<u8>),
}

impl FileBytes {
    /// Maps the file at `path`.
    pub(super) fn map(path: &Path) -> io::Result<Self> {
        MappedFile::open(path).map(|map| Self::Mapped(path.to_owned(), map))
    }

    /// Refuses the data read of these bytes when the file was truncated or written to meanwhile.
    pub(super) fn check_unchanged(&self) -> Result<(), FileChanged> {
        match self {
            Self::Mapped(path, map) => {
                map.check_unchanged().map_err(|source| FileChanged { path: path.clone(), source })
            }
            Self::Owned(_) => Ok(()),
        }
    }

    /// The file's length and times when it was opened; `None` for bytes in memory.
    pub(super) fn stamp(&self) -> Option<FileStamp> {
        match self {
            Self::Mapped(_, map) => Some(map.stamp()),
            Self::Owned(_) => None,
        }
    }

    /// Returns the memory of these bytes to the system, if they are mapped; they can be read again.
    pub(super) fn release(&self, bytes: Range<usize>) {
        match self {
            Self::Mapped(_, map) => map.release(bytes),
            Self::Owned(_) => {}
        }
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(_, map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}
