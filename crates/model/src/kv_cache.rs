//! Sizes of the KV cache: how many bytes a token's keys and values take. Refuses to know where they lie and
//! who owns a block.

use std::fmt;
use std::str::FromStr;

use throng_core::batch::BLOCK_TOKENS;

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// bfloat16, eight significant bits; heads are whole blocks of 32. What AMX multiplies.
    BF16,
    /// Blocks of 32 signed bytes with a 16-bit scale, along a head; 8.5 bits an element.
    Q8_0,
}

impl KvDtype {
    /// Bytes of `n` elements of one head; `None` when they do not fill whole blocks or the product overflows.
    pub fn bytes_of(self, n: usize) -> Option<usize> {
        match self {
            Self::F32 => n.checked_mul(4),
            Self::F16 => n.checked_mul(2),
            Self::BF16 => n.is_multiple_of(32).then(|| n.checked_mul(2))?,
            Self::Q8_0 => n.is_multiple_of(32).then(|| (n / 32).checked_mul(34))?,
        }
    }

    /// Its name on the command line.
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
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown KV cache type; one of f32, f16, bf16, q8_0")]
pub struct UnknownKvDtype;

impl FromStr for KvDtype {
    type Err = UnknownKvDtype;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        [Self::F32, Self::F16, Self::BF16, Self::Q8_0]
            .into_iter()
            .find(|dtype| dtype.name() == name)
            .ok_or(UnknownKvDtype)
    }
}

/// The shape of a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers.
    pub n_layers: usize,
    /// Blocks of 16 tokens, each over all layers.
    pub n_blocks: usize,
    /// Key and value heads of a layer.
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// How they are stored.
    pub dtype: KvDtype,
}

impl KvLayout {
    /// Bytes that one token takes over all layers; `None` when `dtype` cannot hold such heads or it overflows.
    pub fn bytes_per_token(&self) -> Option<usize> {
        let head = self.dtype.bytes_of(self.head_dim)?;
        head.checked_mul(self.n_kv_heads)?.checked_mul(2)?.checked_mul(self.n_layers)
    }

    /// Bytes of one block over all layers.
    pub fn bytes_per_block(&self) -> Option<usize> {
        self.bytes_per_token()?.checked_mul(BLOCK_TOKENS)
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self) -> Option<usize> {
        self.bytes_per_block()?.checked_mul(self.n_blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_follow_the_dtype() {
        let layout = |dtype, head_dim| KvLayout { n_layers: 3, n_blocks: 5, n_kv_heads: 2, head_dim, dtype };
        assert_eq!(layout(KvDtype::F32, 64).bytes_per_token(), Some(3 * 2 * 2 * 64 * 4));
        assert_eq!(layout(KvDtype::F16, 64).bytes_per_block(), Some(3 * 2 * 2 * 64 * 2 * 16));
        assert_eq!(layout(KvDtype::Q8_0, 64).bytes(), Some(3 * 2 * 2 * 68 * 16 * 5));
        assert_eq!(layout(KvDtype::Q8_0, 80).bytes(), None);
        assert_eq!(layout(KvDtype::BF16, 64).bytes(), layout(KvDtype::F16, 64).bytes());
        assert_eq!(layout(KvDtype::BF16, 80).bytes(), None);
        assert_eq!(layout(KvDtype::F32, usize::MAX / 2).bytes(), None);
    }
}
