//! Validates a chunked body while its bytes arrive: size lines, ends of chunks and trailers must strictly
//! follow RFC 9112, and the framing must be in proportion to the data. Keeps no bytes.

use super::http1_head::MAX_HEADER_FIELDS;
use super::http1_head::{is_text, is_token};
use crate::refusal::Violation::{self, FieldsTooLarge, Malformed};

/// Maximum number of chunks of a body, plus one for every [`BYTES_A_CHUNK`] bytes of data.
const MAX_SMALL_CHUNKS: u64 = 8192;
const BYTES_A_CHUNK: u64 = 64;
/// Maximum number of digits of a chunk's size, including leading zeros.
const MAX_SIZE_DIGITS: usize = 16;
const MAX_EXTENSION_BYTES: usize = 4096;
const MAX_TRAILER_BYTES: usize = 4096;

/// Position in a chunked body.
#[derive(Debug, Default)]
pub(super) struct ChunkScan {
    state: State,
    n_chunks: u64,
    n_data_bytes: u64,
    n_extension_bytes: usize,
    n_trailer_bytes: usize,
    n_trailers: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Size { n_digits: usize, size: u64 },
    Extension { size: u64 },
    SizeLf { size: u64 },
    Data { n_left: u64 },
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
    End,
}

impl Default for State {
    fn default() -> Self {
        Self::Size { n_digits: 0, size: 0 }
    }
}

/// A violation, and the number of valid bytes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BrokenAt {
    /// Number of valid bytes in the slice.
    pub n_good: usize,
    /// Violation by the next byte.
    pub violation: Violation,
}

impl ChunkScan {
    /// Whether the body is complete.
    pub fn is_over(&self) -> bool {
        self.state == State::End
    }

    /// Validates `bytes` up to the body's end. Returns how many belong to the body.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<usize, BrokenAt> {
        let mut n = 0;
        while n < bytes.len() && !self.is_over() {
            if let State::Data { n_left } = self.state {
                let n_data = n_left.min((bytes.len() - n) as u64);
                self.n_data_bytes = self.n_data_bytes.saturating_add(n_data);
                self.state =
                    if n_data < n_left { State::Data { n_left: n_left - n_data } } else { State::DataCr };
                n += n_data as usize;
                continue;
            }
            self.state = self.step(bytes[n]).map_err(|violation| BrokenAt { n_good: n, violation })?;
            n += 1;
        }
        Ok(n)
    }

    fn step(&mut self, byte: u8) -> Result<State, Violation> {
        match (self.state, byte) {
            (State::Size { n_digits, size }, byte) => self.size(n_digits, size, byte),
            (State::Extension { size }, b'\r') => Ok(State::SizeLf { size }),
            (State::Extension { size }, byte) if is_text(byte) => {
                bounded(
                    &mut self.n_extension_bytes,
                    MAX_EXTENSION_BYTES,
                    Malformed("its chunk extensions are long"),
                )?;
                Ok(State::Extension { size })
            }
            (State::SizeLf { size: 0 }, b'\n') => Ok(State::TrailerStart),
            (State::SizeLf { size }, b'\n') => self.begin_chunk(size),
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') => Ok(State::default()),
            (State::TrailerStart, b'\r') => Ok(State::EndLf),
            (State::EndLf, b'\n') => Ok(State::End),
            (State::TrailerLf, b'\n') => Ok(State::TrailerStart),
            (state, byte) => self.trailer(state, byte),
        }
    }

    fn size(&self, n_digits: usize, size: u64, byte: u8) -> Result<State, Violation> {
        match (char::from(byte).to_digit(16), byte) {
            (Some(digit), _) if n_digits < MAX_SIZE_DIGITS => {
                Ok(State::Size { n_digits: n_digits + 1, size: size << 4 | u64::from(digit) })
            }
            (None, b'\r') if n_digits > 0 => Ok(State::SizeLf { size }),
            (None, b';') if n_digits > 0 => Ok(State::Extension { size }),
            _ => Err(Malformed("a chunk's size is not a hexadecimal number")),
        }
    }

    fn begin_chunk(&mut self, size: u64) -> Result<State, Violation> {
        self.n_chunks += 1;
        if self.n_chunks > MAX_SMALL_CHUNKS + self.n_data_bytes / BYTES_A_CHUNK {
            return Err(Malformed("its body is cut into too many small chunks"));
        }
        Ok(State::Data { n_left: size })
    }

    fn trailer(&mut self, state: State, byte: u8) -> Result<State, Violation> {
        let next = match (state, byte) {
            (State::TrailerStart, byte) if is_token(byte) => {
                bounded(&mut self.n_trailers, MAX_HEADER_FIELDS, FieldsTooLarge)?;
                State::TrailerName
            }
            (State::TrailerName, byte) if is_token(byte) => State::TrailerName,
            (State::TrailerName, b':') => State::TrailerValue,
            (State::TrailerValue, b'\r') => State::TrailerLf,
            (State::TrailerValue, byte) if is_text(byte) => State::TrailerValue,
            _ => return Err(Malformed("the framing of its chunks is broken")),
        };
        bounded(&mut self.n_trailer_bytes, MAX_TRAILER_BYTES, FieldsTooLarge)?;
        Ok(next)
    }
}

fn bounded(count: &mut usize, max: usize, violation: Violation) -> Result<(), Violation> {
    *count += 1;
    if *count > max { Err(violation) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_small_chunks_is_refused_and_ordinary_chunks_are_not() {
        let count = |chunk: &str, n: usize| {
            let mut scan = ChunkScan::default();
            (0..n).find(|_| scan.advance(chunk.as_bytes()).is_err())
        };
        assert_eq!(count("1\r\nx\r\n", 8000), None);
        assert!(count("1\r\nx\r\n", 10_000).is_some());
        assert_eq!(count(&format!("40\r\n{}\r\n", "x".repeat(64)), 100_000), None);
    }
}
