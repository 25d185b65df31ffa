//! Files mapped into memory for reading. Refuses to know what is in them.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;

use memmap2::Mmap;
#[cfg(target_os = "linux")]
use memmap2::UncheckedAdvice;

/// A whole file mapped read-only. Its pages come from disk when they are first read and can be given back by the
/// system at any time, so a model file costs no memory of its own.
///
/// Another process that shortens the file while it is mapped ends this one with SIGBUS at the next read behind
/// the new end: model files are replaced by renaming, not by writing into them.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
    stamp: FileStamp,
}

/// What the system says of a file when it is opened; a file that was written to since has another stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStamp {
    /// How long it is.
    pub n_bytes: u64,
    /// When its content changed last, in nanoseconds since 1970. Programs that copy files may set it back.
    pub modified_ns: i128,
    /// When anything about it changed last, where the system tells: nobody can set that back.
    pub changed_ns: i128,
}

impl FileStamp {
    fn of(metadata: &std::fs::Metadata) -> Self {
        #[cfg(unix)]
        let (modified_ns, changed_ns) = {
            use std::os::unix::fs::MetadataExt;
            let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
            (ns(metadata.mtime(), metadata.mtime_nsec()), ns(metadata.ctime(), metadata.ctime_nsec()))
        };
        #[cfg(not(unix))]
        let (modified_ns, changed_ns) = {
            let since =
                metadata.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
            (since.map_or(0, |since| since.as_nanos() as i128), 0)
        };
        Self { n_bytes: metadata.len(), modified_ns, changed_ns }
    }
}

impl MappedFile {
    /// Maps the whole file at `path`.
    ///
    /// # Errors
    /// When it cannot be opened or mapped, or is not a regular file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        // SAFETY: the mapping is private and read-only, so nothing in this process can change what the slice
        // shows. The remaining hazard is another process that writes to or truncates the file meanwhile; that is
        // the documented condition of this type and of every loader that maps its weights. All bytes are plain
        // `u8`, for which any value is valid.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self { map, stamp: FileStamp::of(&metadata) })
    }

    /// What the system said of the file when it was opened.
    pub fn stamp(&self) -> FileStamp {
        self.stamp
    }

    /// Tells the system that these bytes are not read again soon: their whole pages no longer count as this process's
    /// memory, and come from the system's cache or from disk if they are read after all.
    ///
    /// # Panics
    /// When the range is outside the file.
    pub fn release(&self, bytes: Range<usize>) {
        assert!(bytes.start <= bytes.end && bytes.end <= self.map.len(), "{bytes:?} of {}", self.map.len());
        #[cfg(target_os = "linux")]
        {
            const PAGE: usize = 4096;
            // A page that is shared with a neighbour stays.
            let (start, end) = (bytes.start.next_multiple_of(PAGE), bytes.end / PAGE * PAGE);
            if start < end {
                // SAFETY: pages of a read-only mapping of a file come back from the file with the same bytes. Where
                // pages are larger than this the call is refused, which does no harm.
                let _ =
                    unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
            }
        }
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_bytes_of_the_file_and_refuses_folders() {
        let folder = std::env::temp_dir().join(format!("throng-mapped-file-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("some.bytes");
        for content in [&b""[..], b"x", &[7u8; 10_000]] {
            std::fs::write(&path, content).unwrap();
            let file = MappedFile::open(&path).unwrap();
            assert_eq!(&*file, content);
            file.release(0..content.len());
            assert_eq!(&*file, content, "released bytes come back");
            assert_eq!(file.stamp().n_bytes, content.len() as u64);
            assert_eq!(file.stamp(), MappedFile::open(&path).unwrap().stamp());
            std::fs::remove_file(&path).unwrap();
        }
        assert_eq!(MappedFile::open(&folder).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(MappedFile::open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
