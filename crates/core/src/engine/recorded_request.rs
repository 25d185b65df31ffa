//! Recorded requests: sizes and outcomes without text and token ids. Prompts and outputs are names of blocks
//! and lengths; requests made from them share the same prefixes as the recorded ones. A resumed request
//! becomes a whole one, a beam search plain continuations, and constraints are left out.

use crate::request::{Adapter, AdapterId, Priority, Request, RequestId, SamplingParams, TenantId, TokenId};
use crate::scheduling::batch::BLOCK_TOKENS;
use crate::scheduling::block_hash::BlockKey;

/// A request without its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedRequest {
    /// Number of the request.
    pub id: u64,
    /// Number of its tenant, in the order of their first requests.
    pub tenant: u32,
    /// Priority among the tenant's requests.
    pub priority: Priority,
    /// Number of its adapter in the executors.
    pub adapter: Option<u32>,
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Names of the full blocks of its prompt.
    pub prompt_blocks: Vec<BlockKey>,
    /// Maximum number of tokens of an output.
    pub max_tokens: u32,
    /// Continuations of the request.
    pub outputs: Vec<RecordedOutput>,
}

/// An output without its tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordedOutput {
    /// Number of tokens, up to the end or the abort.
    pub n_tokens: u32,
    /// Whether the last token ended the output.
    pub stops: bool,
    /// Names of the blocks that the output filled, after those of the prompt.
    pub blocks: Vec<BlockKey>,
}

impl RecordedRequest {
    /// Creates a request for an engine with this vocabulary that shares the same prefixes with others as the
    /// recorded one.
    ///
    /// # Panics
    /// When the vocabulary has fewer than two tokens.
    pub fn to_request(&self, vocabulary_size: u32) -> Request {
        let prompt: Vec<TokenId> =
            (0..self.prompt_tokens).map(|position| self.token(0, position, vocabulary_size)).collect();
        let sampling = SamplingParams {
            temperature: 0.0,
            max_tokens: self.max_tokens,
            eos_token_ids: vec![END],
            ..SamplingParams::default()
        };
        Request {
            tenant: TenantId(format!("tenant {}", self.tenant).into()),
            priority: self.priority,
            adapter: self.adapter.map(|id| Adapter::numbered(AdapterId(id))),
            n: self.outputs.len() as u32,
            ..Request::plain(RequestId(self.id), prompt, sampling)
        }
    }

    /// The token at `position` of continuation `index` with its prompt: [`END`] where the recorded output
    /// ended. It is derived from the name of its block, so that equal names give equal tokens.
    ///
    /// # Panics
    /// When the vocabulary has fewer than two tokens.
    pub fn token(&self, index: u32, position: u32, vocabulary_size: u32) -> TokenId {
        let output = self.outputs.get(index as usize);
        if output.is_some_and(|output| output.stops && position + 1 == self.prompt_tokens + output.n_tokens) {
            return END;
        }
        let block_idx = position as usize / BLOCK_TOKENS;
        let in_output = block_idx.checked_sub(self.prompt_blocks.len());
        let name = match in_output {
            None => self.prompt_blocks.get(block_idx),
            Some(idx) => output.and_then(|output| output.blocks.get(idx)),
        };
        let seed = name.map_or(self.id ^ UNNAMED, |name| name.0);
        1 + (mix(seed, u64::from(position)) % u64::from(vocabulary_size - 1)) as TokenId
    }
}

/// The token that ends an output of a recorded request.
pub const END: TokenId = 0;

/// Constant that distinguishes tokens of blocks without a name.
const UNNAMED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes two words into one; the finisher is that of splitmix64.
fn mix(a: u64, b: u64) -> u64 {
    let mut x = a ^ b.wrapping_mul(UNNAMED);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
