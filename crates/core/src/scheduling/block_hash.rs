//! Names of full blocks: SHA-256 over a block's tokens and the name of the block before it. The first
//! block's name begins with a root of tenant, salt and adapter. Equal in all processes. Does not know where
//! blocks are stored.

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::prompt_media::{PromptMedia, PromptSpan, RotaryPosition};
use crate::request::{AdapterDigest, RequestId, TenantId, TokenId};
use crate::scheduling::block::BLOCK_TOKENS;

/// The tokens of one full block.
pub type BlockTokens = [TokenId; BLOCK_TOKENS];

/// Name of a prefix that ends at a block boundary, derived from its tokens and its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockHash([u8; 32]);

/// Content of a full block: its name with all inputs of the name's hash, so that not even a faulty hash leads
/// to a block with other tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockContent {
    /// Name of the prefix that ends with the block.
    pub hash: BlockHash,
    /// Name of the prefix before the block.
    pub parent: BlockHash,
    /// Tokens of the block.
    pub tokens: BlockTokens,
    /// Number of blocks before it.
    pub n_before: u32,
}

impl BlockContent {
    /// Content of a part of the recurrent state at the end of a prefix. It stays longer than the prefix's
    /// blocks, of which each can be computed again.
    pub fn of_state(prefix: &BlockHash, part: u32) -> Self {
        Self { hash: prefix.state_part(part), parent: *prefix, tokens: [0; BLOCK_TOKENS], n_before: 0 }
    }
}

impl Hash for BlockHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.key().0);
    }
}

/// Bytes of a prefix's name and the tokens after it.
const NAMED_BYTES: usize = 32 + 4 * BLOCK_TOKENS;

/// Initial state of SHA-256 (FIPS 180-4, section 5.3.3).
const SHA256_START: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// Version of the format of names.
const FORMAT_VERSION: u32 = 1;

/// Everything except tokens and adapter that determines the keys and values of a prefix: the model, the type
/// of keys and values, and the version of the format of names. The blocks of one pool share a namespace, so
/// its names leave it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockNamespace([u8; 32]);

impl BlockNamespace {
    /// Creates the namespace of a model with this fingerprint and this type of keys and values.
    pub fn new(model: &str, kv_type: &str) -> Self {
        let mut hasher = Sha256::new_with_prefix(b"throng blocks");
        hasher.update(FORMAT_VERSION.to_le_bytes());
        hasher.update((BLOCK_TOKENS as u32).to_le_bytes());
        absorb(&mut hasher, model.as_bytes());
        absorb(&mut hasher, kv_type.as_bytes());
        Self(hasher.finalize().into())
    }

    /// The name of a block of this namespace among all blocks of all models.
    pub fn name(&self, hash: &BlockHash) -> BlockName {
        let mut hasher = Sha256::new_with_prefix(self.0);
        hasher.update(hash.0);
        BlockName(hasher.finalize().into())
    }
}

/// A name under which a block can be kept outside of the executor that computed it: blocks with equal names
/// hold equal bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockName([u8; 32]);

impl BlockName {
    /// Bytes of the name.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The first eight bytes of a name: enough to choose a replica by its cache, where a mistake costs only time.
/// Never enough to share a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockKey(pub u64);

impl BlockKey {
    fn of_part(self, part: u32) -> Self {
        Self(self.0 ^ (u64::from(part) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Short name of the recurrent state at the end of the prefix with this name.
    pub fn of_state(self) -> Self {
        self.of_part(0)
    }
}

impl BlockHash {
    /// Creates a name from bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Bytes of the name.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Short form of the name.
    pub fn key(&self) -> BlockKey {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        BlockKey(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }

    /// Name of a part of the recurrent state at the end of this prefix; of such a name, the prefix. Further
    /// 24 bytes keep it apart from the names of other prefixes.
    pub fn state_part(&self, part: u32) -> Self {
        let mut bytes = self.0;
        bytes[..8].copy_from_slice(&self.key().of_part(part).0.to_le_bytes());
        Self(bytes)
    }

    /// Short names of a prompt's full blocks, in order.
    pub fn keys_of(root: Self, prompt: &[TokenId], media: Option<&PromptMedia>) -> Vec<BlockKey> {
        Self::names_after(root, 0, prompt, media).map(|name| name.key()).collect()
    }

    /// Names of the full blocks of `tokens`, which follow a prefix of this name and of `n_blocks` blocks.
    pub fn names_after(
        prefix: Self,
        n_blocks: usize,
        tokens: &[TokenId],
        media: Option<&PromptMedia>,
    ) -> impl Iterator<Item = Self> {
        let (blocks, _) = tokens.as_chunks::<BLOCK_TOKENS>();
        blocks.iter().enumerate().scan(prefix, move |name, (block_idx, block)| {
            *name = name.child_with(block, media, n_blocks + block_idx);
            Some(*name)
        })
    }

    /// The empty prefix of all requests of one tenant with one salt and one adapter, whose keys and values
    /// differ from those of the model alone. No other root leads to the same names.
    pub fn root(tenant: &TenantId, cache_salt: Option<&str>, adapter: Option<AdapterDigest>) -> Self {
        let mut hasher = Sha256::new_with_prefix(b"throng tenant");
        absorb(&mut hasher, tenant.0.as_bytes());
        match cache_salt {
            Some(salt) => absorb(&mut hasher, salt.as_bytes()),
            None => hasher.update([0]),
        }
        match adapter {
            Some(adapter) => absorb(&mut hasher, &adapter.0),
            None => hasher.update([0]),
        }
        Self(hasher.finalize().into())
    }

    /// Root of one request alone, whose blocks only its own continuations share.
    pub fn private_root(request: RequestId) -> Self {
        let mut hasher = Sha256::new_with_prefix(b"throng request");
        hasher.update(request.0.to_le_bytes());
        Self(hasher.finalize().into())
    }

    /// Hash of this prefix extended by block `block_idx` of a prompt with media. A span names the first block
    /// that it is part of as a whole, since all of its tokens may see each other.
    pub fn child_with(&self, tokens: &BlockTokens, media: Option<&PromptMedia>, block_idx: usize) -> Self {
        let Some(media) = media else { return self.child(tokens) };
        let mut hasher = Sha256::new_with_prefix(self.followed_by(tokens));
        absorb_media(&mut hasher, media, block_idx);
        Self(hasher.finalize().into())
    }

    /// Hash of this prefix extended by a block of text.
    pub fn child(&self, tokens: &BlockTokens) -> Self {
        // A message of 96 bytes fills two blocks of SHA-256 with its padding. Written out, because there are
        // many short ones.
        let mut blocks = [[0_u8; 64]; 2];
        let (message, padding) = blocks.as_flattened_mut().split_at_mut(NAMED_BYTES);
        message.copy_from_slice(&self.followed_by(tokens));
        padding[0] = 0x80;
        padding[24..].copy_from_slice(&(8 * NAMED_BYTES as u64).to_be_bytes());
        let mut state = SHA256_START;
        sha2::block_api::compress256(&mut state, &blocks);
        let mut name = [0; 32];
        name.as_chunks_mut::<4>()
            .0
            .iter_mut()
            .zip(state)
            .for_each(|(bytes, word)| *bytes = word.to_be_bytes());
        Self(name)
    }

    fn followed_by(&self, tokens: &BlockTokens) -> [u8; NAMED_BYTES] {
        let mut bytes = [0_u8; NAMED_BYTES];
        bytes[..32].copy_from_slice(&self.0);
        for (bytes, token) in bytes[32..].chunks_exact_mut(4).zip(tokens) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
        bytes
    }
}

/// Feeds a field with its length, so that no two lists of fields read the same. The leading 1 marks presence.
fn absorb(hasher: &mut Sha256, field: &[u8]) {
    hasher.update([1]);
    hasher.update((field.len() as u64).to_le_bytes());
    hasher.update(field);
}

/// Feeds the media that the tokens of block `block_idx` represent; feeds no bytes for text at the positions
/// of text.
fn absorb_media(hasher: &mut Sha256, media: &PromptMedia, block_idx: usize) {
    let (start, end) = (block_idx * BLOCK_TOKENS, (block_idx + 1) * BLOCK_TOKENS);
    let spans = media.spans.iter().filter(|span| (span.start as usize) < end && span.end() > start as u64);
    for PromptSpan { start, len, digest, kind } in spans {
        hasher.update([1, *kind as u8]);
        hasher.update(start.to_le_bytes());
        hasher.update(len.to_le_bytes());
        hasher.update(digest.0);
    }
    for position in start..end.min(media.positions.len()) {
        let explicit = media.positions[position];
        if explicit != RotaryPosition::of_text(position as u32) {
            hasher.update([2, (position - start) as u8]);
            explicit.0.into_iter().for_each(|number| hasher.update(number.to_le_bytes()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_digest_of_the_prefix_and_its_tokens() {
        let mut name = BlockHash::root(&TenantId("a".into()), None, None);
        for i in 0..20 {
            let block: BlockTokens = std::array::from_fn(|j| (i * 977 + j as u32).wrapping_mul(0x9e37_79b9));
            let digest = Sha256::digest(name.followed_by(&block));
            name = name.child(&block);
            assert_eq!(name.0[..], digest[..]);
        }
    }
}
