//! The bytes of a weight file, wherever they are. Refuses to know their format.

use std::io;
use std::ops::{Deref, Range};
use std::path::Path;

use throng_kernels::mapped_file::{FileStamp, MappedFile};

/// The bytes of a weight file: mapped, or in memory (tests and fuzzing).
#[derive(Debug)]
pub(super) enum FileBytes {
    Mapped(MappedFile),
    Owned(Vec<u8>),
}

impl FileBytes {
    /// Maps the file at `path`.
    pub(super) fn map(path: &Path) -> io::Result<Self> {
        MappedFile::open(path).map(Self::Mapped)
    }

    /// What the system said of the file; `None` for bytes in memory.
    pub(super) fn stamp(&self) -> Option<FileStamp> {
        match self {
            Self::Mapped(map) => Some(map.stamp()),
            Self::Owned(_) => None,
        }
    }

    /// Gives memory back that these bytes take, if any; they can be read again.
    pub(super) fn release(&self, bytes: Range<usize>) {
        match self {
            Self::Mapped(map) => map.release(bytes),
            Self::Owned(_) => {}
        }
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}
