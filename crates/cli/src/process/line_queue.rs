//! Lines for a file descriptor that may be slow, full or closed: a bounded queue and one thread that writes.
//! Queuing a line never blocks and never fails. Truncated lines of JSON stay valid JSON. Does not know the
//! content of lines.

use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing_subscriber::fmt::format;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// Capacity of the queue in bytes; a line that does not fit is dropped and counted. While the thread
/// writes, it holds up to as many bytes again.
const MAX_QUEUED_BYTES: usize = 1 << 20;
/// Maximum bytes of a line; a longer one is truncated.
const MAX_LINE_BYTES: usize = 16 << 10;
/// Interval between retries if another process made the descriptor non-blocking.
const RETRY: Duration = Duration::from_millis(20);

/// Format of a log line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LineFormat {
    /// Plain text.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// The queue. Clones share it; its thread lives as long as the process.
#[derive(Debug, Clone)]
pub struct LineQueue {
    shared: Arc<Shared>,
    format: LineFormat,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Signals that there is text to write, or that the thread has written all of it.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    text: String,
    is_writing: bool,
    n_dropped: u64,
}

impl LineQueue {
    /// Starts the thread that writes to `out`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(name: &str, format: LineFormat, out: impl Write + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let writer = Writer { shared: Arc::clone(&shared), format, out, n_reported: 0 };
        std::thread::Builder::new().name(name.to_owned()).spawn(move || writer.run())?;
        Ok(Self { shared, format })
    }

    /// Queues a message as one line in the queue's format.
    pub fn push_message(&self, level: &str, message: &str) {
        match self.format {
            LineFormat::Text => self.push(message),
            LineFormat::Json => self.push(&json_line(level, message)),
        }
    }

    /// Queues one line, which must be in the queue's format. Escapes control characters, including line
    /// breaks, so that clients' text can neither forge a line nor control a terminal.
    pub fn push(&self, line: &str) {
        let mut state = self.shared.lock();
        if state.text.len() + line.len().min(MAX_LINE_BYTES) > MAX_QUEUED_BYTES {
            state.n_dropped += 1;
            return;
        }
        match self.format {
            LineFormat::Text => escape(&mut state.text, line),
            LineFormat::Json => escape_json(&mut state.text, line),
        }
        state.text.push('\n');
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Number of lines dropped because the queue was full or writing failed.
    pub fn n_dropped(&self) -> u64 {
        self.shared.lock().n_dropped
    }

    /// Waits at most `limit` until all queued lines are written or dropped.
    pub fn flush(&self, limit: Duration) {
        let is_pending = |state: &mut State| state.is_writing || !state.text.is_empty();
        let _ = self.shared.changed.wait_timeout_while(self.shared.lock(), limit, is_pending);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of the writing thread.
struct Writer<W> {
    shared: Arc<Shared>,
    format: LineFormat,
    out: W,
    n_reported: u64,
}

impl<W: Write> Writer<W> {
    fn run(mut self) {
        let mut text = String::new();
        loop {
            let n_dropped = self.take(&mut text);
            let n_written = self.write(text.as_bytes());
            let n_lost = text.as_bytes()[n_written..].iter().filter(|&&byte| byte == b'\n').count() as u64;
            self.shared.lock().n_dropped += n_lost;
            if n_lost == 0 {
                self.report(n_dropped);
            }
            text.clear();
        }
    }

    /// Waits for text and takes all of it. Returns the number of lines dropped so far.
    fn take(&self, text: &mut String) -> u64 {
        let mut state = self.shared.lock();
        state.is_writing = false;
        self.shared.changed.notify_all();
        let has_none = |state: &mut State| state.text.is_empty();
        state = self.shared.changed.wait_while(state, has_none).unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut state.text, text);
        state.is_writing = true;
        state.n_dropped
    }

    /// Reports the number of dropped lines once writing succeeds again.
    fn report(&mut self, n_dropped: u64) {
        if n_dropped > self.n_reported {
            let n_lost = n_dropped - self.n_reported;
            let message = format!("{n_lost} log lines were dropped: they could not be written");
            let line = match self.format {
                LineFormat::Text => message + "\n",
                LineFormat::Json => json_line("WARN", &message) + "\n",
            };
            if self.write(line.as_bytes()) == line.len() {
                self.n_reported = n_dropped;
            }
        }
    }

    /// Writes as many bytes as the descriptor accepts and returns their number.
    fn write(&mut self, bytes: &[u8]) -> usize {
        let mut n_written = 0;
        while n_written < bytes.len() {
            match self.out.write(&bytes[n_written..]) {
                Ok(0) => break,
                Ok(n) => n_written += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(RETRY),
                Err(_) => break,
            }
        }
        n_written
    }
}

/// Appends `line`, truncated if it is too long. Escapes control characters and characters that break or
/// reorder lines.
fn escape(text: &mut String, line: &str) {
    let kept = &line[..line.floor_char_boundary(MAX_LINE_BYTES)];
    text.push_str(&escaped(kept));
    if kept.len() < line.len() {
        text.push_str(" … (cut)");
    }
}

/// The text of one line with control characters and characters that break or reorder lines escaped.
pub fn escaped(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    for c in line.chars() {
        if is_escaped(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Appends a line of JSON and escapes the same characters, which occur only inside of strings, as JSON
/// does. A line that is too long is replaced, because a truncated one does not parse.
fn escape_json(text: &mut String, line: &str) {
    if line.len() > MAX_LINE_BYTES {
        text.push_str(&json_line("WARN", &format!("a log line of {} bytes was too long", line.len())));
        return;
    }
    for c in line.chars() {
        if is_escaped(c) {
            // All these characters are in the basic multilingual plane: one UTF-16 unit.
            text.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            text.push(c);
        }
    }
}

/// Whether a character could break, reorder or hide a line where it is shown.
fn is_escaped(c: char) -> bool {
    let reorders = matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    reorders || (c.is_control() && c != '\t')
}

/// A JSON line with the members of the log's events.
fn json_line(level: &str, message: &str) -> String {
    let mut timestamp = String::new();
    // Writing to a string does not fail.
    let _ = SystemTime.format_time(&mut format::Writer::new(&mut timestamp));
    serde_json::json!({ "timestamp": timestamp, "level": level, "message": message }).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// A descriptor controlled by the test: each `Ok` admits one write, each `Err` fails one.
    struct Gate {
        verdicts: Receiver<io::Result<()>>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.verdicts.recv().unwrap_or_else(|_| Err(ErrorKind::BrokenPipe.into()))?;
            self.written.lock().expect("no panics").extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn gated() -> (LineQueue, Sender<io::Result<()>>, impl Fn() -> String) {
        gated_with(LineFormat::Text)
    }

    fn gated_with(format: LineFormat) -> (LineQueue, Sender<io::Result<()>>, impl Fn() -> String) {
        let (tell, verdicts) = channel();
        let written = Arc::new(Mutex::default());
        let gate = Gate { verdicts, written: Arc::clone(&written) };
        let queue = LineQueue::start("test", format, gate).expect("a thread");
        let text = move || String::from_utf8(written.lock().expect("no panics").clone()).expect("text");
        (queue, tell, text)
    }

    #[test]
    fn a_line_stays_one_line() {
        let (queue, tell, text) = gated();
        tell.send(Ok(())).expect("a reader");
        queue.push("a\nb\x1b[31m\r\u{85}\u{202e}\tç");
        queue.flush(LONG);
        assert_eq!(text(), "a\\nb\\u{1b}[31m\\r\\u{85}\\u{202e}\tç\n");
    }

    #[test]
    fn a_line_of_json_stays_one_and_says_the_same() {
        let (queue, tell, text) = gated_with(LineFormat::Json);
        (0..5).for_each(|_| tell.send(Ok(())).expect("a reader"));
        let message = "a\"b\\\n\x1b[31m\u{85}\u{7f}\u{202e}ç\u{1f600}";
        queue.push(&serde_json::json!({ "message": message }).to_string());
        queue.push_message("ERROR", message);
        queue.push(&serde_json::json!({ "message": "x".repeat(MAX_LINE_BYTES) }).to_string());
        queue.flush(LONG);
        let lines: Vec<String> = text().lines().map(str::to_owned).collect();
        assert!(!lines.concat().contains(is_escaped), "{lines:?}");
        let read = |line: &String| serde_json::from_str::<serde_json::Value>(line).expect("JSON");
        let [plain, with_level, long] = &lines.iter().map(read).collect::<Vec<_>>()[..] else {
            panic!("{lines:?}");
        };
        assert_eq!((&plain["message"], &with_level["message"]), (&message.into(), &message.into()));
        assert_eq!((&with_level["level"], &long["level"]), (&"ERROR".into(), &"WARN".into()));
        assert!(with_level["timestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{with_level}");
    }

    #[test]
    fn lines_for_a_stuck_descriptor_are_dropped_counted_and_reported() {
        let (queue, tell, text) = gated();
        let line = "x".repeat(MAX_LINE_BYTES - 1);
        // The thread may take the first of them and block on writing it; the others fill the queue.
        let n_sent = 200;
        (0..n_sent).for_each(|_| queue.push(&line));
        let n_dropped = queue.n_dropped();
        assert!((1..n_sent).contains(&n_dropped), "{n_dropped}");
        (0..4).for_each(|_| tell.send(Ok(())).expect("a reader"));
        queue.flush(LONG);
        let (told, lines) = (format!("{n_dropped} log lines were dropped"), text());
        assert!(lines.lines().any(|line| line.starts_with(&told)), "no line says: {told}");
        assert_eq!(lines.lines().filter(|found| *found == line).count() as u64, n_sent - n_dropped);
    }

    #[test]
    fn failed_writes_are_counted_and_later_lines_are_still_written() {
        let (queue, tell, text) = gated();
        tell.send(Err(ErrorKind::StorageFull.into())).expect("a reader");
        queue.push("lost");
        queue.flush(LONG);
        assert_eq!((queue.n_dropped(), text()), (1, String::new()));
        (0..2).for_each(|_| tell.send(Ok(())).expect("a reader"));
        queue.push("kept");
        queue.flush(LONG);
        assert_eq!(text(), "kept\n1 log lines were dropped: they could not be written\n");
    }

    #[test]
    fn flushing_to_a_stuck_descriptor_times_out() {
        let (queue, _tell, text) = gated();
        queue.push("never");
        queue.flush(Duration::from_millis(10));
        assert_eq!(text(), "");
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        let (queue, tell, text) = gated();
        tell.send(Ok(())).expect("a reader");
        queue.push(&"ç".repeat(MAX_LINE_BYTES));
        queue.flush(LONG);
        assert_eq!(text(), format!("{} … (cut)\n", "ç".repeat(MAX_LINE_BYTES / 2)));
    }
}
