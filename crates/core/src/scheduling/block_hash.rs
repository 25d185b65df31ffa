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

/// Name of a prefix that ends at a block boundary, made of its tokens and its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockHash([u8; 32]);

/// Content of a full block: its name with all that the name is made of, so that not even a faulty hash leads
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

impl Hash for BlockHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.key().0);
    }
}

/// Version of the format of names.
const FORMAT_VERSION: u32 = 1;

/// All that determines the keys and values of a prefix beside its tokens and its adapter: the model, the
/// type of keys and values, and the version of the format of names. The blocks of one pool are of one
/// namespace, so its names leave it out.
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

/// The first eight bytes of a name: enough to choose a replica by what it has cached, where a mistake costs
/// time. Never enough to share a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockKey(pub u64);

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

    /// This prefix, longer by block `block_idx` of a prompt with media. A span names the first block that it
    /// is part of as a whole, since all of its tokens may see each other.
    pub fn child_with(&self, tokens: &BlockTokens, media: Option<&PromptMedia>, block_idx: usize) -> Self {
        let mut hasher = Sha256::new_with_prefix(self.followed_by(tokens));
        media.into_iter().for_each(|media| absorb_media(&mut hasher, media, block_idx));
        Self(hasher.finalize().into())
    }

    /// This prefix, longer by a block of text.
    pub fn child(&self, tokens: &BlockTokens) -> Self {
        Self(Sha256::digest(self.followed_by(tokens)).into())
    }

    fn followed_by(&self, tokens: &BlockTokens) -> [u8; 32 + 4 * BLOCK_TOKENS] {
        let mut bytes = [0_u8; 32 + 4 * BLOCK_TOKENS];
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

/// Feeds the media that the tokens of block `block_idx` stand for; nothing for text at the positions of
/// text.
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
    use crate::prompt_media::{ContentDigest, SpanKind};

    const RECORDED: [&str; 3] = [
        "e5bfacc2f6462361e89cbc0250d6e3a495c55613b2e98c47c6a3895c3c55bed8",
        "04d135a2c5f9d830ee5255b2320ee002ec0ad046d1ff074008ffe2bbda649127",
        "8499e9e5ea4b7c04b16ecc0156a8440fcf58d23cf48d53b7f7f3e41b937f341d",
    ];

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
            BlockHash::root(&tenant("a"), None, Some(AdapterDigest([0; 32]))),
            BlockHash::root(&tenant("a"), None, Some(AdapterDigest([1; 32]))),
            BlockHash::root(&tenant("a"), Some("b"), Some(AdapterDigest([1; 32]))),
            BlockHash::private_root(RequestId(0)),
            BlockHash::private_root(RequestId(1)),
        ];
        for (i, a) in roots.iter().enumerate() {
            assert!(roots[i + 1..].iter().all(|b| a != b), "root {i} is not alone");
        }
    }

    #[test]
    fn namespaces_are_kept_apart() {
        let hash = BlockHash::root(&tenant("a"), None, None).child(&[1; BLOCK_TOKENS]);
        let names = [("m", "f16"), ("m", "f32"), ("n", "f16"), ("mf16", ""), ("", "mf16")]
            .map(|(model, kv_type)| BlockNamespace::new(model, kv_type).name(&hash));
        for (i, a) in names.iter().enumerate() {
            assert!(names[i + 1..].iter().all(|b| a != b), "namespace {i} is not alone");
        }
        assert_eq!(names[0], BlockNamespace::new("m", "f16").name(&hash));
        assert_ne!(names[0], BlockNamespace::new("m", "f16").name(&hash.child(&[1; BLOCK_TOKENS])));
    }

    /// Gateways and workers of other builds compare these names.
    #[test]
    fn names_are_those_of_other_builds() {
        let block: BlockTokens = std::array::from_fn(|i| i as u32);
        let hex = |bytes: &[u8; 32]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let plain = BlockHash::root(&tenant("a"), Some("salt"), None).child(&block);
        let adapted = BlockHash::root(&tenant("a"), None, Some(AdapterDigest([7; 32]))).child(&block);
        let name = BlockNamespace::new("model", "f16").name(&plain);
        assert_eq!([hex(plain.as_bytes()), hex(adapted.as_bytes()), hex(name.as_bytes())], RECORDED);
    }

    /// Indices of those of a prompt's five blocks that have the same names with other media.
    fn equal_names(media: &PromptMedia, other: &PromptMedia) -> [bool; 5] {
        let root = BlockHash::root(&tenant("a"), None, None);
        let keys = |media| BlockHash::keys_of(root, &[1; 5 * BLOCK_TOKENS], Some(media));
        let (keys, others) = (keys(media), keys(other));
        std::array::from_fn(|i| keys[i] == others[i])
    }

    #[test]
    fn an_image_names_the_blocks_that_it_covers_and_those_after() {
        let image = |start, len, digest| PromptSpan {
            start,
            len,
            digest: ContentDigest([digest; 32]),
            kind: SpanKind::Image,
        };
        let with = |spans: &[PromptSpan]| PromptMedia { spans: spans.to_vec(), ..PromptMedia::default() };
        let one = with(&[image(20, 20, 1)]);
        let from_second = [true, false, false, false, false];
        assert_eq!(equal_names(&one, &one), [true; 5]);
        assert_eq!(equal_names(&one, &with(&[image(20, 20, 2)])), from_second);
        assert_eq!(equal_names(&one, &with(&[image(20, 21, 1)])), from_second);
        assert_eq!(equal_names(&one, &with(&[image(21, 20, 1)])), from_second);
        assert_eq!(equal_names(&one, &with(&[])), from_second);
        let video = with(&[PromptSpan { kind: SpanKind::Video, ..image(20, 20, 1) }]);
        assert_eq!(equal_names(&one, &video), from_second);
        let two = with(&[image(20, 20, 1), image(64, 1, 1)]);
        assert_eq!(equal_names(&one, &two), [true, true, true, true, false]);
        let mut moved = one.clone();
        moved.positions = (0..80).map(RotaryPosition::of_text).collect();
        assert_eq!(equal_names(&one, &moved), [true; 5], "the positions of text");
        moved.positions[50] = RotaryPosition([50, 51, 50]);
        assert_eq!(equal_names(&one, &moved), [true, true, true, false, false]);
        let root = BlockHash::root(&tenant("a"), None, None);
        let text = BlockHash::keys_of(root, &[1; 80], None);
        assert_eq!(text, BlockHash::keys_of(root, &[1; 80], Some(&with(&[]))), "nothing beside text");
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
