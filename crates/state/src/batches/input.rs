//! The lines of a batch's input, read from the chunks in which it is kept.

use super::record::InputRef;
use crate::error::StateError;
use crate::items::ItemReader;
use crate::tenant::TenantState;

/// A line of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InputLine {
    /// Index of the line among the lines that are not empty, from 0.
    pub number: u64,
    /// Bytes of the line; `None` if it is too long.
    pub bytes: Option<Vec<u8>>,
}

/// Reads lines one after the other.
#[derive(Debug)]
pub(super) struct LineReader {
    chunks: ItemReader,
    max_line_bytes: usize,
    /// Bytes that were read and not returned yet.
    buffer: Vec<u8>,
    /// Start of the next line in `buffer`.
    start: usize,
    number: u64,
    /// Whether the current line is too long, so that its rest is skipped.
    is_skipping: bool,
    has_ended: bool,
}

impl LineReader {
    pub fn new(tenant: &TenantState, input: &InputRef, max_line_bytes: usize) -> Self {
        Self {
            chunks: ItemReader::of_chunks(tenant, tenant.key(input.kind(), &input.id)),
            max_line_bytes,
            buffer: Vec::new(),
            start: 0,
            number: 0,
            is_skipping: false,
            has_ended: false,
        }
    }

    /// Reads the next line that is not empty.
    pub async fn next(&mut self) -> Result<Option<InputLine>, StateError> {
        loop {
            let rest = &self.buffer[self.start..];
            let end = rest.iter().position(|&byte| byte == b'\n');
            let (length, is_whole) = match end {
                Some(end) => (end, true),
                None => (rest.len(), self.has_ended),
            };
            if is_whole {
                let is_skipped = std::mem::take(&mut self.is_skipping) || length > self.max_line_bytes;
                let line = rest[..length].trim_ascii().to_vec();
                let was_last = end.is_none();
                self.start += if was_last { length } else { length + 1 };
                if is_skipped || !line.is_empty() {
                    self.number += 1;
                    let bytes = (!is_skipped).then_some(line);
                    return Ok(Some(InputLine { number: self.number - 1, bytes }));
                }
                if was_last {
                    return Ok(None);
                }
                continue;
            }
            if length > self.max_line_bytes {
                self.is_skipping = true;
            }
            if self.is_skipping {
                self.start = self.buffer.len();
            }
            self.buffer.drain(..self.start);
            self.start = 0;
            match self.chunks.next().await? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk.body),
                None => self.has_ended = true,
            }
        }
    }
}
