//! What a full block holds, as a name: SHA-256 over its tokens and the name of the block before it, rooted in
//! who may share it. Does not know where blocks live.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::batch::BLOCK_TOKENS;
use crate::request::{AdapterId, RequestId, TenantId, TokenId};

/// The tokens of one full block.
pub type BlockTokens = [TokenId; BLOCK_TOKENS];

/// The name of a prefix that ends at a block boundary: of its tokens and of who may share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash([u8; 32]);

/// The first eight bytes of a name: enough to choose a replica by what it has cached, where a mistake costs time. Never enough to
/// share a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockKey(pub u64);

impl BlockHash {
    /// The name in short.
    pub fn key(&self) -> BlockKey {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        BlockKey(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }

    /// The names in short of the full blocks of a prompt, in its order.
    pub fn keys_of(root: Self, prompt: &[TokenId]) -> Vec<BlockKey> {
        let (blocks, _) = prompt.as_chunks::<BLOCK_TOKENS>();
        let names = blocks.iter().scan(root, |name, block| {
            *name = name.child(block);
            Some(name.key())
        });
        names.collect()
    }

    /// The empty prefix of all requests of one tenant with one salt and one adapter, whose keys and values differ from those
    /// of the model alone. No other root leads to the same names.
    pub fn root(tenant: &TenantId, cache_salt: Option<&str>, adapter: Option<AdapterId>) -> Self {
        let mut hasher = Sha256::new_with_prefix(b"throng tenant");
        absorb(&mut hasher, tenant.0.as_bytes());
        match cache_salt {
            Some(salt) => absorb(&mut hasher, salt.as_bytes()),
            None => hasher.update([0]),
        }
        match adapter {
            Some(adapter) => absorb(&mut hasher, &adapter.0.to_le_bytes()),
            None => hasher.update([0]),
        }
        Self(hasher.finalize().into())
    }

    /// The empty prefix of one request alone: its continuations share, nobody else does.
    pub fn private_root(request: RequestId) -> Self {
        let mut hasher = Sha256::new_with_prefix(b"throng request");
        hasher.update(request.0.to_le_bytes());
        Self(hasher.finalize().into())
    }

    /// This prefix, one block longer.
    pub fn child(&self, tokens: &BlockTokens) -> Self {
        let mut bytes = [0_u8; 32 + 4 * BLOCK_TOKENS];
        bytes[..32].copy_from_slice(&self.0);
        for (bytes, token) in bytes[32..].chunks_exact_mut(4).zip(tokens) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
        Self(Sha256::digest(bytes).into())
    }
}

/// Feeds a field with its length, so that no two lists of fields read the same. The leading 1 marks presence.
fn absorb(hasher: &mut Sha256, field: &[u8]) {
    hasher.update([1]);
    hasher.update((field.len() as u64).to_le_bytes());
    hasher.update(field);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId(name.into())
    }

    #[test]
    fn roots_are_kept_apart() {
        let roots = [
            BlockHash::root(&tenant(""), None, None),
            BlockHash::root(&tenant(""), Some(""), None),
            BlockHash::root(&tenant("a"), None, None),
            BlockHash::root(&tenant("a"), Some("b"), None),
            BlockHash::root(&tenant("ab"), Some(""), None),
            BlockHash::root(&tenant(""), Some("ab"), None),
            BlockHash::root(&tenant("a"), None, Some(AdapterId(0))),
            BlockHash::root(&tenant("a"), None, Some(AdapterId(1))),
            BlockHash::root(&tenant("a"), Some("b"), Some(AdapterId(1))),
            BlockHash::private_root(RequestId(0)),
            BlockHash::private_root(RequestId(1)),
        ];
        for (i, a) in roots.iter().enumerate() {
            assert!(roots[i + 1..].iter().all(|b| a != b), "root {i} is not alone");
        }
    }

    #[test]
    fn a_name_covers_the_whole_prefix() {
        let root = BlockHash::root(&tenant("a"), None, None);
        let (x, y) = ([1; BLOCK_TOKENS], [2; BLOCK_TOKENS]);
        assert_eq!(root.child(&x).child(&y), root.child(&x).child(&y));
        assert_ne!(root.child(&x).child(&y), root.child(&y).child(&x));
        assert_ne!(root.child(&x), root.child(&x).child(&x));
    }
}
