//! Blocks of the KV cache. Does not know their content.

use serde::{Deserialize, Serialize};

/// Tokens in one KV block.
pub const BLOCK_TOKENS: usize = 16;

/// An index into the KV cache, in blocks of [`BLOCK_TOKENS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockId(pub u32);
