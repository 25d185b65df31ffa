//! A file for appending that is reopened when it was renamed or removed, so that log rotation needs no signal
//! to the process. Does not know its content.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The file that currently has this name.
#[derive(Debug)]
pub struct FollowingFile {
    path: PathBuf,
    file: File,
}

impl FollowingFile {
    /// Opens the file, or creates one that only its owner and group can read.
    ///
    /// # Errors
    /// When the file cannot be opened or created.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: append_to(path)? })
    }

    /// Whether the open file still has its name.
    #[cfg(unix)]
    fn is_current(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let id = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let named = std::fs::metadata(&self.path).map(id);
        named.is_ok_and(|named| self.file.metadata().is_ok_and(|open| id(open) == named))
    }

    #[cfg(not(unix))]
    fn is_current(&self) -> bool {
        true
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o640);
    options.open(path)
}

impl Write for FollowingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_current() {
            self.file = append_to(&self.path)?;
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_goes_to_the_file_that_has_the_name_now() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, rotated) = (folder.path().join("access.log"), folder.path().join("access.log.1"));
        let mut file = FollowingFile::open(&path).expect("a new file");
        file.write_all(b"first\n").expect("room");
        std::fs::rename(&path, &rotated).expect("it is there");
        file.write_all(b"second\n").expect("room");
        std::fs::remove_file(&path).expect("it is there");
        file.write_all(b"third\n").expect("room");
        let read = |path| std::fs::read_to_string(path).expect("a file");
        assert_eq!((read(&rotated), read(&path)), ("first\n".to_owned(), "third\n".to_owned()));
    }
}
