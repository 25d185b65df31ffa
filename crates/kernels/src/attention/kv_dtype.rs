//! Types in which keys and values are stored. Does not know where they lie.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use crate::quant::BLOCK;

/// Storage of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// Keys and values in 32-bit floats.
    F32,
    /// Keys and values in 16-bit IEEE floats.
    F16,
    /// bfloat16 in the order of AMX tiles; heads are whole blocks of 32 elements.
    BF16,
    /// Blocks of 32 int8 along the head with an f16 scale, 8.5 bits an element; heads are whole blocks.
    Q8_0,
}

impl KvDtype {
    /// Bytes of `n` elements of one head; `None` when they are not whole blocks or the product overflows.
    pub fn bytes_of(self, n: usize) -> Option<usize> {
        match self {
            Self::F32 => n.checked_mul(4),
            Self::F16 => n.checked_mul(2),
            Self::BF16 => n.is_multiple_of(BLOCK).then(|| n.checked_mul(2))?,
            Self::Q8_0 => n.is_multiple_of(BLOCK).then(|| (n / BLOCK).checked_mul(34))?,
        }
    }

    /// Name of the type on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Q8_0 => "q8_0",
        }
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no [`KvDtype`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKvDtype;

impl fmt::Display for UnknownKvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown KV cache type; one of f32, f16, bf16, q8_0")
    }
}

impl Error for UnknownKvDtype {}

impl FromStr for KvDtype {
    type Err = UnknownKvDtype;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        [Self::F32, Self::F16, Self::BF16, Self::Q8_0]
            .into_iter()
            .find(|dtype| dtype.name() == name)
            .ok_or(UnknownKvDtype)
    }
}
