//! Lines of a file with their numbers, and the order of their times.

use std::fmt;
use std::io::BufRead;

use throng_core::time::Timestamp;

use crate::error::SimError;

/// Longest line that is read.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Numbered lines of a reader.
pub struct Lines {
    reader: Box<dyn BufRead + Send>,
    n_read: u64,
    last_at: Option<Timestamp>,
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("n_read", &self.n_read).finish_non_exhaustive()
    }
}

impl Lines {
    /// Numbered lines of a reader.
    pub fn new(reader: impl BufRead + Send + 'static) -> Self {
        Self { reader: Box::new(reader), n_read: 0, last_at: None }
    }

    /// Number of the line that was read last, from 1.
    pub fn number(&self) -> u64 {
        self.n_read
    }

    /// The next line that is not empty.
    ///
    /// # Errors
    /// When reading fails, or a line is no text or too long.
    pub fn next_line(&mut self) -> Result<Option<String>, SimError> {
        loop {
            let mut bytes = Vec::new();
            let mut limited = std::io::Read::take(&mut self.reader, MAX_LINE_BYTES as u64 + 1);
            if limited.read_until(b'\n', &mut bytes)? == 0 {
                return Ok(None);
            }
            self.n_read += 1;
            if bytes.len() > MAX_LINE_BYTES {
                return Err(self.error(format!("it is longer than {MAX_LINE_BYTES} bytes")));
            }
            let line = String::from_utf8(bytes).map_err(|_| self.error("it is not UTF-8"))?;
            let line = line.trim();
            if !line.is_empty() {
                return Ok(Some(line.to_owned()));
            }
        }
    }

    /// Checks that times do not run backwards.
    ///
    /// # Errors
    /// The error names the line.
    pub fn check_order(&mut self, at: Timestamp) -> Result<(), SimError> {
        let last = self.last_at.replace(at);
        match last.filter(|last| *last > at) {
            None => Ok(()),
            Some(last) => {
                let (at, last) = (at.as_ns() as f64 / 1e9, last.as_ns() as f64 / 1e9);
                Err(self.error(format!("time runs backwards: {at} s after {last} s")))
            }
        }
    }

    /// The error of the line that was read last.
    pub fn error(&self, problem: impl Into<String>) -> SimError {
        SimError::line(self.n_read, problem)
    }
}
