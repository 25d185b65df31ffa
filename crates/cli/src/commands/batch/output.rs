//! The file of results: ids of finished lines, and new results. A line cut by an interruption is dropped.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// File that gets the results.
#[derive(Debug)]
pub(super) struct Output {
    file: File,
    /// Ids of the results in the file.
    done: HashSet<String>,
}

#[derive(Deserialize)]
struct Written {
    id: String,
}

impl Output {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// When it cannot be read or written, or contains anything but results.
    pub fn open(path: &Path) -> Result<Self> {
        let place = || format!("cannot write {}", path.display());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(path).with_context(place)?;
        let (mut reader, mut done, mut whole_bytes) = (BufReader::new(&file), HashSet::new(), 0);
        loop {
            let mut line = Vec::new();
            let n = reader.read_until(b'\n', &mut line).with_context(place)?;
            if n == 0 || !line.ends_with(b"\n") {
                break;
            }
            let Ok(Written { id }) = serde_json::from_slice(&line) else {
                bail!("{} is no file of results: name another one, or remove it", path.display());
            };
            done.insert(id);
            whole_bytes += n as u64;
        }
        file.set_len(whole_bytes).with_context(place)?;
        file.seek(SeekFrom::Start(whole_bytes)).with_context(place)?;
        Ok(Self { file, done })
    }

    /// Whether the line of this request has a result.
    pub fn has(&self, request_id: &str) -> bool {
        self.done.contains(&id_of(request_id))
    }

    /// Number of results in the file.
    pub fn n_done(&self) -> u64 {
        self.done.len() as u64
    }

    /// Writes a result, which ends with a line break.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&mut self, request_id: &str, line: &[u8]) -> Result<()> {
        self.file.write_all(line).context("cannot write the results")?;
        self.done.insert(id_of(request_id));
        Ok(())
    }

    /// Synchronizes the file to disk.
    ///
    /// # Errors
    /// When synchronizing fails.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_all().context("cannot write the results")
    }
}

/// The id of a request's result.
fn id_of(request_id: &str) -> String {
    format!("batch_{request_id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_known_and_a_cut_line_is_dropped() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.jsonl");
        let mut output = Output::open(&path).expect("made");
        output.write("line_1", b"{\"id\":\"batch_line_1\"}\n").expect("written");
        output.write("line_2", b"{\"id\":\"batch_li").expect("cut");
        let mut output = Output::open(&path).expect("opened");
        assert!(output.has("line_1") && !output.has("line_2"));
        output.write("line_2", b"{\"id\":\"batch_line_2\"}\n").expect("written");
        let text = std::fs::read_to_string(&path).expect("readable");
        assert_eq!(text, "{\"id\":\"batch_line_1\"}\n{\"id\":\"batch_line_2\"}\n");
        std::fs::write(&path, "something else\n").expect("written");
        assert!(Output::open(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).expect("readable"), "something else\n");
    }
}
