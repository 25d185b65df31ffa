//! Files mapped into memory for reading. Does not know their content.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;

use memmap2::Mmap;
#[cfg(target_os = "linux")]
use memmap2::UncheckedAdvice;

use crate::bus_fault::Guard;

/// A whole file mapped read-only. Its pages are read from disk at their first use and can be dropped by the
/// system at any time, so a model file costs no memory of its own.
///
/// If another process shortens the file meanwhile, zeros are read behind the new end; readers check for that
/// afterwards with [`Self::check_unchanged`].
#[derive(Debug)]
pub struct MappedFile {
    /// Guard; dropped before the map, so that the addresses are released before they are unmapped.
    guard: Guard,
    map: Mmap,
    file: File,
    stamp: FileStamp,
}

/// Opens a regular file for reading. Never waits, as opening a pipe would.
///
/// # Errors
/// When it cannot be opened, or is not a regular file: a folder, a pipe or a device.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

/// Length and times of a file when it is opened; a file that was written to since has another stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStamp {
    /// Length of the file in bytes.
    pub n_bytes: u64,
    /// Time at which its content changed last, in nanoseconds since 1970. Programs that copy files may set it
    /// back.
    pub modified_ns: i128,
    /// Time of the last change of the file or its metadata, if the system has it; programs cannot set it.
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
        let file = open_regular(path)?;
        let stamp = FileStamp::of(&file.metadata()?);
        // SAFETY: the mapping is private and read-only, so nothing in this process can change what the slice
        // shows. Another process that writes to the file meanwhile changes bytes, which are plain `u8`: any
        // value is valid, and no check is trusted that was made before on bytes that are read again. One that
        // truncates it leaves zeros, by the guard.
        let map = unsafe { Mmap::map(&file)? };
        let start = map.as_ptr() as usize;
        Ok(Self { guard: Guard::new(start..start + map.len()), map, file, stamp })
    }

    /// Refuses the data read so far when the file was truncated or written to since it was opened.
    ///
    /// # Errors
    /// When the file was changed, or the system does not report it.
    pub fn check_unchanged(&self) -> io::Result<()> {
        let now = FileStamp::of(&self.file.metadata()?);
        // The time of the last change of anything moves with links and permissions too.
        let same = (now.n_bytes, now.modified_ns) == (self.stamp.n_bytes, self.stamp.modified_ns);
        match same && !self.guard.is_damaged() {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!(
                    "the file was truncated or written to while it was read ({} bytes, now {})",
                    self.stamp.n_bytes, now.n_bytes
                ),
            )),
        }
    }

    /// Length and times of the file when it was opened.
    pub fn stamp(&self) -> FileStamp {
        self.stamp
    }

    /// Tells the system that these bytes are not read again soon: their whole pages no longer count as this
    /// process's memory, and are read from the system's cache or from disk if they are needed after all.
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
                // SAFETY: pages of a read-only mapping of a file come back from the file with the same bytes.
                // Where pages are larger than this the call is refused, which does no harm.
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
    fn shows_the_bytes_of_the_file_even_when_it_is_cut_and_refuses_folders() {
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
        // Longer than a huge page and a few pages more; cut inside of a page, at its end, and to nothing.
        for cut_to in [2_500_000, 8192, 4097, 1, 0] {
            std::fs::write(&path, vec![7u8; 3_000_000]).unwrap();
            let file = MappedFile::open(&path).unwrap();
            assert_eq!(file[3_000_000 - 1], 7);
            file.check_unchanged().unwrap();
            File::options().write(true).open(&path).unwrap().set_len(cut_to).unwrap();
            let whole = file.iter().take_while(|byte| **byte == 7).count() as u64;
            assert_eq!(whole, cut_to, "the rest is zeros");
            assert_eq!(file.check_unchanged().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            // Growing back does not undo it.
            File::options().write(true).open(&path).unwrap().set_len(3_000_000).unwrap();
            assert!(file.check_unchanged().is_err());
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(MappedFile::open(&folder).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(MappedFile::open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
