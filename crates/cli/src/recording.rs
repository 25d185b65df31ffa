//! `--record FILE`: events of an engine or a gateway, written line by line by a thread of its own. The queue
//! in front of it is bounded: events that do not fit are counted as lost. A full disk ends the recording,
//! never the server.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use throng_core::engine::recording::{
    Event, Header, Line, LoadObserver, Observed, RecordedEngine, Recorder, VERSION,
};

/// Maximum number of inputs that wait to be written.
const MAX_QUEUED: usize = 1 << 14;
/// Bytes of prompts and outputs among them.
const MAX_QUEUED_BYTES: u64 = 64 << 20;
/// A file that is larger is kept as FILE.1, and another one begun.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Maximum number of files beside the newest one.
const MAX_OLD_FILES: u32 = 3;
/// Maximum number of requests whose outputs are followed at a time.
const MAX_OPEN: usize = 1 << 16;

/// A running recording.
#[derive(Debug)]
pub struct Recording {
    queue: SyncSender<Observed>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    n_bytes: AtomicU64,
    n_lost: AtomicU64,
    has_ended: AtomicBool,
}

impl Recording {
    /// Begins a recording; an existing file is kept under another name.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn start(path: &Path, engine: Option<RecordedEngine>) -> Result<Self> {
        let mut salt = [0; 32];
        // As unpredictable as the keys of hash maps: enough to keep names of one recording from another's.
        for chunk in salt.chunks_exact_mut(8) {
            chunk.copy_from_slice(&random_word().to_le_bytes());
        }
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started_unix_ms = u64::try_from(started.as_millis()).unwrap_or(u64::MAX);
        let header = Header { throng_recording: VERSION, part: 0, started_unix_ms, engine };
        let file = RotatedFile::open(path, header, MAX_FILE_BYTES)
            .with_context(|| format!("--record: cannot write {}", path.display()))?;
        let (queue, queued) = sync_channel(MAX_QUEUED);
        let counts = Arc::new(Counts::default());
        let writer = Writer {
            queued,
            counts: Arc::clone(&counts),
            recorder: Recorder::new(salt, MAX_OPEN),
            file,
            n_told: 0,
        };
        std::thread::Builder::new()
            .name("throng-record".into())
            .spawn(move || writer.run())
            .context("cannot start a thread")?;
        Ok(Self { queue, counts })
    }
}

impl LoadObserver for Recording {
    fn observed(&self, observed: Observed) {
        let counts = &self.counts;
        if counts.has_ended.load(Ordering::Relaxed) {
            return;
        }
        let n_bytes = observed.n_bytes() as u64;
        let is_full = counts.n_bytes.load(Ordering::Relaxed) + n_bytes > MAX_QUEUED_BYTES;
        counts.n_bytes.fetch_add(n_bytes, Ordering::Relaxed);
        let is_lost = is_full
            || matches!(
                self.queue.try_send(observed),
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_))
            );
        if is_lost {
            counts.n_bytes.fetch_sub(n_bytes, Ordering::Relaxed);
            counts.n_lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn random_word() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(SystemTime::now())
}

/// The thread that writes.
struct Writer {
    queued: Receiver<Observed>,
    counts: Arc<Counts>,
    recorder: Recorder,
    file: RotatedFile,
    /// Number of lost inputs that the file reports.
    n_told: u64,
}

impl Writer {
    fn run(mut self) {
        if let Err(error) = self.write_all() {
            self.counts.has_ended.store(true, Ordering::Relaxed);
            tracing::error!(%error, "the recording ends: its file cannot be written");
        }
    }

    fn write_all(&mut self) -> io::Result<()> {
        let mut lines = Vec::new();
        while let Ok(first) = self.queued.recv() {
            let mut next = Some(first);
            while let Some(observed) = next {
                self.counts.n_bytes.fetch_sub(observed.n_bytes() as u64, Ordering::Relaxed);
                let at_ns = observed.at_ns();
                self.recorder.lines(observed, &mut lines);
                let n_lost = self.counts.n_lost.load(Ordering::Relaxed);
                if n_lost > self.n_told {
                    self.file.write(Line { at_ns, event: Event::Lost(n_lost - self.n_told) })?;
                    self.n_told = n_lost;
                }
                for line in lines.drain(..) {
                    self.file.write(line)?;
                }
                next = self.queued.try_recv().ok();
            }
            self.file.flush()?;
        }
        Ok(())
    }
}

/// A file with a header that is put aside once it is too large.
struct RotatedFile {
    path: PathBuf,
    header: Header,
    max_bytes: u64,
    out: BufWriter<File>,
    n_bytes: u64,
    last_ns: u64,
}

impl RotatedFile {
    fn open(path: &Path, header: Header, max_bytes: u64) -> io::Result<Self> {
        if fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0) {
            put_aside(path)?;
        }
        let out = BufWriter::new(create(path)?);
        let mut this = Self { path: path.to_owned(), header, max_bytes, out, n_bytes: 0, last_ns: 0 };
        this.write_header()?;
        Ok(this)
    }

    fn write_header(&mut self) -> io::Result<()> {
        let line = serde_json::to_string(&self.header)?;
        self.n_bytes = line.len() as u64 + 1;
        writeln!(self.out, "{line}")?;
        self.out.flush()
    }

    fn write(&mut self, mut line: Line) -> io::Result<()> {
        if self.n_bytes > self.max_bytes {
            self.out.flush()?;
            put_aside(&self.path)?;
            self.out = BufWriter::new(create(&self.path)?);
            self.header.part += 1;
            self.write_header()?;
        }
        // Inputs of several threads may come in another order than that of their times.
        self.last_ns = self.last_ns.max(line.at_ns);
        line.at_ns = self.last_ns;
        let text = serde_json::to_string(&line)?;
        self.n_bytes += text.len() as u64 + 1;
        writeln!(self.out, "{text}")
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Renames a file to FILE.1, older ones to FILE.2 and so on, and removes the oldest.
fn put_aside(path: &Path) -> io::Result<()> {
    let old = |n: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{n}"));
        PathBuf::from(name)
    };
    for n in (1..MAX_OLD_FILES).rev() {
        if old(n).exists() {
            fs::rename(old(n), old(n + 1))?;
        }
    }
    fs::rename(path, old(1))
}

#[cfg(test)]
mod tests {
    use throng_core::engine::Input;
    use throng_core::time::Timestamp;

    use super::*;

    fn line(at_ns: u64) -> Line {
        Line { at_ns, event: Event::Tick }
    }

    fn header() -> Header {
        Header { throng_recording: VERSION, part: 0, started_unix_ms: 1, engine: None }
    }

    #[test]
    fn files_are_put_aside_and_each_begins_with_a_header() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("load.jsonl");
        let mut file = RotatedFile::open(&path, header(), 150).expect("a file");
        (0..40).for_each(|at| file.write(line(at)).expect("room"));
        file.flush().expect("room");
        let mut names: Vec<_> = fs::read_dir(folder.path())
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        assert_eq!(names, ["load.jsonl", "load.jsonl.1", "load.jsonl.2", "load.jsonl.3"]);
        let parts: Vec<u64> = names
            .iter()
            .map(|name| {
                let text = fs::read_to_string(folder.path().join(name)).expect("text");
                serde_json::from_str::<Header>(text.lines().next().expect("a line")).expect("a header").part
            })
            .collect();
        assert!(
            parts[0] == parts[1] + 1 && parts[1] == parts[2] + 1 && parts[2] == parts[3] + 1,
            "{parts:?}"
        );
        // A new process does not overwrite what is there.
        RotatedFile::open(&path, header(), 150).expect("a file");
        let kept = fs::read_to_string(folder.path().join("load.jsonl.1")).expect("text");
        assert!(kept.contains(&format!("\"part\":{}", parts[0])));
    }

    #[test]
    fn a_full_disk_ends_the_recording_and_nothing_else() {
        let full = Path::new("/dev/full");
        if full.exists() {
            let out = BufWriter::new(OpenOptions::new().write(true).open(full).expect("a device"));
            let (path, header) = (full.to_owned(), header());
            let file = RotatedFile { path, header, max_bytes: u64::MAX, out, n_bytes: 0, last_ns: 0 };
            let (queue, queued) = sync_channel(4);
            let counts = Arc::new(Counts::default());
            let recorder = Recorder::new([0; 32], 1);
            let recording = Recording { queue, counts: Arc::clone(&counts) };
            recording.observed(Observed::new(&Input::Tick, Timestamp::default(), &[]));
            drop(recording);
            Writer { queued, counts: Arc::clone(&counts), recorder, file, n_told: 0 }.run();
            assert!(counts.has_ended.load(Ordering::Relaxed));
        }
    }
}
