//! A file system of a few megabytes for tests of full disks: a `tmpfs` of the test's own, which only root can
//! mount.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::shared_files::note_skipped;

/// The file system. It is unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// Mounts a file system of this number of KiB over a folder. `None`, with a message, if that is not
    /// possible.
    pub fn mount(folder: &Path, kib: u32) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "throng-test"]).arg(folder);
        let is_mounted = mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        if !is_mounted {
            note_skipped("a full disk: no file system can be mounted here (only root can)");
            return None;
        }
        Some(Self { folder: folder.to_owned() })
    }

    /// A path on it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Leaves no room for a single byte.
    ///
    /// # Panics
    /// When the file that takes the room cannot be created.
    pub fn fill(&self) {
        let mut options = OpenOptions::new();
        let mut file = options.append(true).create(true).open(self.path("filler")).expect("a file");
        for size in [1 << 16, 1 << 12, 1] {
            while file.write_all(&vec![b'x'; size]).is_ok() {}
        }
    }

    /// Removes the file that fills the disk.
    ///
    /// # Panics
    /// When it was not filled.
    pub fn free(&self) {
        fs::remove_file(self.path("filler")).expect("it was filled");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
    }
}
