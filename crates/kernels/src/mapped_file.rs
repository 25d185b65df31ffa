//! Files mapped into memory for reading. Refuses to know what is in them.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

/// A whole file mapped read-only. Its pages come from disk when they are first read and can be given back by the
/// system at any time, so a model file costs no memory of its own.
///
/// Another process that shortens the file while it is mapped ends this one with SIGBUS at the next read behind
/// the new end: model files are replaced by renaming, not by writing into them.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps the whole file at `path`.
    ///
    /// # Errors
    /// When it cannot be opened or mapped, or is not a regular file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        // SAFETY: the mapping is private and read-only, so nothing in this process can change what the slice
        // shows. The remaining hazard is another process that writes to or truncates the file meanwhile; that is
        // the documented condition of this type and of every loader that maps its weights. All bytes are plain
        // `u8`, for which any value is valid.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self { map })
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
            assert_eq!(&*MappedFile::open(&path).unwrap(), content);
            std::fs::remove_file(&path).unwrap();
        }
        assert_eq!(MappedFile::open(&folder).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(MappedFile::open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
