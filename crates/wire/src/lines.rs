//! Lines of JSON of bounded length in a body that arrives in pieces. Does not know their content.

use serde::Serialize;

use crate::MAX_LINE_BYTES;

/// Error for a line above the maximum length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a line of more than {MAX_LINE_BYTES} bytes")]
pub struct LineTooLong;

/// Encodes a value as one line.
///
/// # Errors
/// When the line would be too long.
pub fn line(value: &impl Serialize) -> Result<Vec<u8>, LineTooLong> {
    // The types of this crate have string keys and no floats: nothing else can fail.
    let mut line = serde_json::to_vec(value).map_err(|_| LineTooLong)?;
    line.push(b'\n');
    if line.len() > MAX_LINE_BYTES { Err(LineTooLong) } else { Ok(line) }
}

/// Buffer of received bytes that are not taken as lines yet.
#[derive(Debug, Default)]
pub struct LineBuffer {
    bytes: Vec<u8>,
    /// Start of the first line that was not taken.
    start: usize,
    /// Number of bytes in which the end of that line was searched.
    searched: usize,
}

impl LineBuffer {
    /// Adds a piece of the body.
    ///
    /// # Errors
    /// When a line is too long.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), LineTooLong> {
        self.bytes.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        // Whole lines are taken before the next piece comes, so that what is here is the beginning of one.
        if self.bytes.len() + piece.len() > MAX_LINE_BYTES + (1 << 20) {
            return Err(LineTooLong);
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// Takes the next complete line, without its end.
    pub fn next_line(&mut self) -> Option<&[u8]> {
        let found = self.bytes[self.searched..].iter().position(|&byte| byte == b'\n');
        let Some(n) = found else {
            self.searched = self.bytes.len();
            return None;
        };
        let (start, end) = (self.start, self.searched + n);
        (self.start, self.searched) = (end + 1, end + 1);
        Some(&self.bytes[start..end])
    }

    /// Takes up to `n` bytes that follow the line that was taken last.
    pub fn take_bytes(&mut self, n: usize) -> &[u8] {
        let end = self.bytes.len().min(self.start.saturating_add(n));
        let start = std::mem::replace(&mut self.start, end);
        self.searched = end;
        &self.bytes[start..end]
    }

    /// Whether the buffer ends inside a line.
    pub fn is_inside_line(&self) -> bool {
        self.start < self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_do_not_depend_on_the_pieces() {
        let seed = fastrand::get_seed();
        println!("seed {seed}");
        let text = b"{}\n\n[1, 2]\n\"a long line that is cut often\"\n5\nrest";
        for _ in 0..200 {
            let (mut buffer, mut lines, mut rest) = (LineBuffer::default(), Vec::new(), &text[..]);
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(fastrand::usize(1..=rest.len().min(9)));
                rest = after;
                buffer.push(piece).expect("short");
                while let Some(line) = buffer.next_line() {
                    lines.push(String::from_utf8(line.to_vec()).expect("text"));
                }
            }
            assert_eq!(lines, ["{}", "", "[1, 2]", "\"a long line that is cut often\"", "5"]);
            assert!(buffer.is_inside_line());
        }
    }

    #[test]
    fn bytes_may_stand_between_lines() {
        let mut buffer = LineBuffer::default();
        buffer.push(b"first\n\n1").expect("short");
        assert_eq!(buffer.next_line(), Some(&b"first"[..]));
        assert_eq!(buffer.take_bytes(4), b"\n1");
        buffer.push(b"\n3second\n").expect("short");
        assert_eq!(buffer.take_bytes(2), b"\n3");
        assert_eq!(buffer.next_line(), Some(&b"second"[..]));
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut buffer = LineBuffer::default();
        let piece = vec![b' '; 1 << 20];
        let n = (0..64).take_while(|_| buffer.push(&piece).is_ok()).count();
        assert_eq!(n, (MAX_LINE_BYTES >> 20) + 1);
        assert_eq!(line(&" ".repeat(MAX_LINE_BYTES)), Err(LineTooLong));
    }
}
