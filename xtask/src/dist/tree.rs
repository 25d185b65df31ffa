//! Files of a package as a tar archive that depends on nothing but them: sorted, owned by root, with one
//! time. Does not know what the files are.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use tar::{Builder, EntryType, Header};

use crate::shell::{output_of, workspace};

/// A file of a package.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its place below the package's root.
    pub path: String,
    /// Its permissions.
    pub mode: u32,
    /// Its contents.
    pub bytes: Vec<u8>,
}

impl Entry {
    /// A file that everyone may read.
    pub fn file(path: &str, bytes: Vec<u8>) -> Self {
        Self { path: path.to_owned(), mode: 0o644, bytes }
    }

    /// A file that everyone may run.
    pub fn program(path: &str, bytes: Vec<u8>) -> Self {
        Self { path: path.to_owned(), mode: 0o755, bytes }
    }
}

/// The files of a package.
#[derive(Debug)]
pub struct Tree {
    entries: BTreeMap<String, Entry>,
    /// Seconds since 1970.
    seconds: u64,
}

impl Tree {
    /// No files; all will have this time.
    pub fn new(seconds: u64) -> Self {
        Self { entries: BTreeMap::new(), seconds }
    }

    /// Adds a file.
    pub fn add(&mut self, entry: Entry) {
        self.entries.insert(entry.path.clone(), entry);
    }

    /// Bytes of all files.
    pub fn n_bytes(&self) -> usize {
        self.entries.values().map(|entry| entry.bytes.len()).sum()
    }

    /// The archive, with every folder before what is in it and `root` before every path.
    pub fn tar(&self, root: &str) -> Result<Vec<u8>> {
        let mut builder = Builder::new(Vec::new());
        for folder in self.folders() {
            let mut header = self.header(EntryType::Directory, 0o755, 0);
            builder.append_data(&mut header, format!("{root}{folder}"), std::io::empty())?;
        }
        for entry in self.entries.values() {
            let mut header = self.header(EntryType::Regular, entry.mode, entry.bytes.len() as u64);
            builder.append_data(&mut header, format!("{root}{}", entry.path), entry.bytes.as_slice())?;
        }
        Ok(builder.into_inner()?)
    }

    fn header(&self, kind: EntryType, mode: u32, size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        header.set_mtime(self.seconds);
        header.set_uid(0);
        header.set_gid(0);
        header
    }

    /// Every folder, as `usr/` and `usr/bin/`, outer ones first.
    fn folders(&self) -> BTreeSet<String> {
        let ends = |path: &str| path.match_indices('/').map(|(at, _)| at + 1).collect::<Vec<_>>();
        let of = |path: &String| ends(path).into_iter().map(|end| path[..end].to_owned()).collect::<Vec<_>>();
        self.entries.keys().flat_map(of).collect()
    }
}

/// The time of all files: `SOURCE_DATE_EPOCH`, else that of the commit, else 1970.
pub fn timestamp() -> u64 {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    let of_commit =
        || output_of("git", &["-C", &workspace().to_string_lossy(), "log", "-1", "--format=%ct"]).ok();
    let text = given.or_else(|| String::from_utf8(of_commit()?).ok());
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn an_archive_has_folders_first_and_depends_on_the_files_only() {
        let tar = |order: [&str; 2]| {
            let mut tree = Tree::new(7);
            order.iter().for_each(|path| tree.add(Entry::program(path, path.as_bytes().to_vec())));
            tree.tar("./").expect("in memory")
        };
        let bytes = tar(["usr/bin/a", "etc/b"]);
        assert_eq!(bytes, tar(["etc/b", "usr/bin/a"]));
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut found = Vec::new();
        for entry in archive.entries().expect("an archive") {
            let mut entry = entry.expect("an entry");
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("text");
            let header = entry.header();
            assert_eq!((header.mtime().ok(), header.uid().ok()), (Some(7), Some(0)));
            found.push((entry.path().expect("a path").to_string_lossy().into_owned(), text));
        }
        let paths: Vec<&str> = found.iter().map(|(path, _)| path.trim_start_matches("./")).collect();
        assert_eq!(paths, ["etc/", "usr/", "usr/bin/", "etc/b", "usr/bin/a"]);
        assert_eq!(found[4].1, "usr/bin/a");
    }
}
