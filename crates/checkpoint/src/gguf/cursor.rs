//! Reads little-endian numbers and strings from a slice and never past its end. Does not know their meaning.

use super::error::GgufError;

/// The unread rest of a slice.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    n_read: usize,
}

/// A fault at the cursor, without the name of the value that was being read.
#[derive(Debug)]
pub(super) enum ReadFault {
    Truncated { needed: u64, remaining: u64 },
    InvalidUtf8,
}

impl ReadFault {
    /// The fault as an error about `reading`.
    pub(super) fn while_reading(self, reading: impl Into<String>) -> GgufError {
        let reading = reading.into();
        match self {
            Self::Truncated { needed, remaining } => GgufError::Truncated { reading, needed, remaining },
            Self::InvalidUtf8 => GgufError::InvalidUtf8 { reading },
        }
    }
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, n_read: 0 }
    }

    /// Bytes read so far.
    pub(super) fn n_read(&self) -> usize {
        self.n_read
    }

    /// Number of bytes that are left.
    pub(super) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next `n` bytes.
    pub(super) fn bytes(&mut self, n: u64) -> Result<&'a [u8], ReadFault> {
        let short = ReadFault::Truncated { needed: n, remaining: self.rest.len() as u64 };
        let Ok(n) = usize::try_from(n) else { return Err(short) };
        let Some((head, rest)) = self.rest.split_at_checked(n) else { return Err(short) };
        self.rest = rest;
        self.n_read += n;
        Ok(head)
    }

    /// The next `n` elements of `width` bytes each.
    pub(super) fn elements(&mut self, n: u64, width: usize) -> Result<&'a [u8], ReadFault> {
        self.bytes(n.saturating_mul(width as u64))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ReadFault> {
        let bytes = self.bytes(N as u64)?;
        Ok(bytes.try_into().expect("the slice has N bytes"))
    }

    pub(super) fn u32(&mut self) -> Result<u32, ReadFault> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, ReadFault> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// The bytes of a string, after their number as `u64`.
    pub(super) fn string_bytes(&mut self) -> Result<&'a [u8], ReadFault> {
        let n = self.u64()?;
        self.bytes(n)
    }

    /// Copies a string to `buffer` and checks it there: the bytes of a mapped file can change after a check.
    pub(super) fn string_in<'b>(&mut self, buffer: &'b mut Vec<u8>) -> Result<&'b str, ReadFault> {
        buffer.clear();
        buffer.extend_from_slice(self.string_bytes()?);
        std::str::from_utf8(buffer).map_err(|_| ReadFault::InvalidUtf8)
    }

    /// A string of its own, as in [`Self::string_in`].
    pub(super) fn string(&mut self) -> Result<String, ReadFault> {
        String::from_utf8(self.string_bytes()?.to_vec()).map_err(|_| ReadFault::InvalidUtf8)
    }
}
