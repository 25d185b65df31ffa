//! The lines of a recording. A last line that was cut off, as a crash leaves it, is ignored.

use std::fmt;
use std::io::{BufRead, Read};

use throng_core::engine::recording::{Header, Line, VERSION};

use crate::error::SimError;

/// Longest accepted line: the names of a million blocks.
const MAX_LINE_BYTES: u64 = 32 << 20;

/// A recording that is read.
pub struct RecordingReader {
    reader: Box<dyn BufRead + Send>,
    header: Header,
    n_lines: u64,
    last_ns: u64,
}

impl fmt::Debug for RecordingReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordingReader").field("header", &self.header).finish_non_exhaustive()
    }
}

impl RecordingReader {
    /// Reads the header of a recording.
    ///
    /// # Errors
    /// When the file is empty, is not a recording, or is one of an unknown version.
    pub fn open(reader: impl BufRead + Send + 'static) -> Result<Self, SimError> {
        let mut reader: Box<dyn BufRead + Send> = Box::new(reader);
        let Some(line) = read_line(&mut reader, 1)? else { return Err(SimError::Empty) };
        let header: Header = serde_json::from_str(&line)
            .map_err(|error| SimError::line(1, format!("it is not the header of a recording: {error}")))?;
        if header.throng_recording != VERSION {
            let version = header.throng_recording;
            return Err(SimError::line(1, format!("version {version} of the format is not known")));
        }
        Ok(Self { reader, header, n_lines: 1, last_ns: 0 })
    }

    /// Header of the recording.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Number of the line that was read last.
    pub fn n_lines(&self) -> u64 {
        self.n_lines
    }

    /// The next line; `None` after the last whole one.
    ///
    /// # Errors
    /// When a line is damaged, or its time is before that of the line in front of it.
    pub fn next_line(&mut self) -> Result<Option<Line>, SimError> {
        let number = self.n_lines + 1;
        let Some(text) = read_line(&mut self.reader, number)? else { return Ok(None) };
        self.n_lines = number;
        let line: Line =
            serde_json::from_str(&text).map_err(|error| SimError::line(number, error.to_string()))?;
        if line.at_ns < self.last_ns {
            let (at, last) = (line.at_ns, self.last_ns);
            return Err(SimError::line(number, format!("time runs backwards: {at} ns after {last} ns")));
        }
        self.last_ns = line.at_ns;
        Ok(Some(line))
    }
}

/// Reads the next whole line.
fn read_line(reader: &mut Box<dyn BufRead + Send>, number: u64) -> Result<Option<String>, SimError> {
    let mut bytes = Vec::new();
    reader.take(MAX_LINE_BYTES).read_until(b'\n', &mut bytes)?;
    match bytes.pop() {
        Some(b'\n') => {
            String::from_utf8(bytes).map(Some).map_err(|_| SimError::line(number, "it is not UTF-8"))
        }
        Some(_) if bytes.len() as u64 + 1 == MAX_LINE_BYTES => {
            Err(SimError::line(number, format!("it is longer than {MAX_LINE_BYTES} bytes")))
        }
        Some(_) | None => Ok(None),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Cursor;

    use throng_core::engine::recording::Event;

    use super::*;

    pub const HEADER: &str = r#"{"throng_recording":1,"part":0,"started_unix_ms":5}"#;

    fn read(text: &str) -> Result<Vec<Line>, SimError> {
        let mut reader = RecordingReader::open(Cursor::new(text.to_owned()))?;
        let mut lines = Vec::new();
        while let Some(line) = reader.next_line()? {
            lines.push(line);
        }
        Ok(lines)
    }

    #[test]
    fn a_line_that_was_cut_off_is_ignored_and_a_damaged_one_is_named() {
        let tick = r#"{"t":7,"e":"tick"}"#;
        let whole = format!("{HEADER}\n{tick}\n");
        assert_eq!(read(&whole).expect("whole"), [Line { at_ns: 7, event: Event::Tick }]);
        for cut in 0..tick.len() {
            assert_eq!(read(&format!("{whole}{}", &tick[..cut])).expect("cut").len(), 1, "{cut}");
        }
        for (text, expected) in [
            (String::new(), "no request"),
            ("nonsense\n".into(), "line 1: it is not the header"),
            (format!("{}\n", HEADER.replace(":1", ":9")), "line 1: version 9"),
            (format!("{HEADER}\n{{}}\n{tick}\n"), "line 2: missing field"),
            (format!("{whole}{}\n", tick.replace('7', "6")), "line 3: time runs backwards"),
        ] {
            let error = read(&text).expect_err(&text).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
