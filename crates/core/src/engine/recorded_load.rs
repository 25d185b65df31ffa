//! A recorded load: sizes, times and outcomes of requests, without text and token ids. Prompts and outputs
//! are names of blocks and lengths, from which a planner makes requests that share as much as the recorded
//! ones did. A resumed request becomes a whole one, a beam search plain continuations, and constraints are
//! left out. Does not plan.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::engine_core::{Effect, Input};
use super::error::StreamEvent;
use crate::request::{
    Adapter, AdapterId, FinishReason, Priority, Request, RequestId, SamplingParams, TenantId, TokenId,
};
use crate::scheduling::batch::BLOCK_TOKENS;
use crate::scheduling::block_hash::{BlockHash, BlockKey};
use crate::time::Timestamp;

/// Requests of an engine in the order of arrival, with the events of their readers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedLoad {
    /// Inputs in the order of their times.
    pub inputs: Vec<RecordedInput>,
}

/// An input from outside of the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedInput {
    /// Nanoseconds since the engine's start.
    pub at_ns: u64,
    /// Event at that time.
    pub event: RecordedEvent,
}

/// Events from outside; the ends of steps are left out, since they follow from the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedEvent {
    /// A request.
    Submit(RecordedRequest),
    /// The reader of a request has gone away.
    Abort(u64),
    /// A continuation needs no more tokens.
    AbortSequence(u64, u32),
    /// The reader of a request is behind.
    ReaderBehind(u64),
    /// The reader of a request has caught up.
    ReaderCaughtUp(u64),
}

/// A request without its tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedOutput {
    /// Number of tokens, up to the end or the abort.
    pub n_tokens: u32,
    /// Whether the last token ended the output.
    pub stops: bool,
    /// Names of the blocks that the output filled, after those of the prompt.
    pub blocks: Vec<BlockKey>,
}

impl RecordedRequest {
    /// Makes a request for an engine with this vocabulary that shares prefixes with others as the recorded
    /// one did.
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

/// Records a load from the inputs and effects of an [`EngineCore`](super::EngineCore), while it runs or from
/// its [`InputLog`](super::InputLog).
#[derive(Debug, Default)]
pub struct LoadRecorder {
    load: RecordedLoad,
    tenants: BTreeMap<TenantId, u32>,
    /// Requests that have not ended, and the indices of their entries.
    open: BTreeMap<RequestId, OpenRequest>,
}

#[derive(Debug)]
struct OpenRequest {
    input_idx: usize,
    root: BlockHash,
    request: Request,
    /// The tokens of each continuation, and whether the last token ended it.
    outputs: Vec<(Vec<TokenId>, bool)>,
}

impl LoadRecorder {
    /// Notes an input and its effects.
    pub fn note(&mut self, input: &Input, now: Timestamp, effects: &[Effect]) {
        let event = match input {
            Input::Submit { request, .. } => Some(RecordedEvent::Submit(self.submit(request))),
            Input::Abort(request) => Some(RecordedEvent::Abort(request.0)),
            Input::AbortSequence(id) => Some(RecordedEvent::AbortSequence(id.request.0, id.index)),
            Input::ReaderBehind { request, .. } => Some(RecordedEvent::ReaderBehind(request.0)),
            Input::ReaderCaughtUp(request) => Some(RecordedEvent::ReaderCaughtUp(request.0)),
            _ => None,
        };
        self.load.inputs.extend(event.map(|event| RecordedInput { at_ns: now.as_ns(), event }));
        for effect in effects {
            match effect {
                Effect::Deliver { request, event: StreamEvent::Token { index, report } } => {
                    if let Some(open) = self.open.get_mut(request) {
                        open.outputs[*index as usize].0.push(report.chosen.token);
                    }
                }
                Effect::Deliver { request, event: StreamEvent::Finished { index, reason, .. } } => {
                    if let Some(open) = self.open.get_mut(request) {
                        open.outputs[*index as usize].1 = matches!(reason, FinishReason::Stop { .. });
                    }
                }
                Effect::Close { request, .. } => self.close(*request),
                _ => {}
            }
        }
    }

    /// The recorded load.
    pub fn finish(mut self) -> RecordedLoad {
        let open: Vec<RequestId> = self.open.keys().copied().collect();
        open.into_iter().for_each(|request| self.close(request));
        self.load
    }

    fn submit(&mut self, request: &Request) -> RecordedRequest {
        let n_tenants = self.tenants.len() as u32;
        let tenant = *self.tenants.entry(request.tenant.clone()).or_insert(n_tenants);
        let adapter = request.adapter.map(|adapter| adapter.digest);
        let root = BlockHash::root(&request.tenant, request.cache_salt.as_deref(), adapter);
        let open = OpenRequest {
            input_idx: self.load.inputs.len(),
            root,
            request: request.clone(),
            outputs: (0..request.n)
                .map(|index| (request.output_so_far(index).unwrap_or_default().to_vec(), false))
                .collect(),
        };
        self.open.insert(request.id, open);
        RecordedRequest {
            id: request.id.0,
            tenant,
            priority: request.priority,
            adapter: request.adapter.map(|adapter| adapter.id.0),
            prompt_tokens: request.prompt.len() as u32,
            prompt_blocks: BlockHash::keys_of(root, &request.prompt, request.media.as_deref()),
            max_tokens: request.sampling.max_tokens,
            outputs: vec![RecordedOutput::default(); request.n as usize],
        }
    }

    fn close(&mut self, id: RequestId) {
        let Some(OpenRequest { input_idx, root, request, outputs }) = self.open.remove(&id) else { return };
        let RecordedEvent::Submit(recorded) = &mut self.load.inputs[input_idx].event else { return };
        let n_prompt_blocks = request.prompt.len() / BLOCK_TOKENS;
        let of_output = |(output, stops): (Vec<TokenId>, bool)| {
            let tokens = [&request.prompt, &output[..]].concat();
            let names = BlockHash::keys_of(root, &tokens, request.media.as_deref());
            RecordedOutput { n_tokens: output.len() as u32, stops, blocks: names[n_prompt_blocks..].to_vec() }
        };
        recorded.outputs = outputs.into_iter().map(of_output).collect();
    }
}
