//! Converts the events of an engine or a gateway to lines of a recording. Does not know files.

use std::collections::BTreeMap;
use std::fmt::Debug;

use sha2::{Digest, Sha256};

use super::{End, EndReason, Event, Line, Step, Submit};
use crate::engine::engine_core::{Effect, Input};
use crate::engine::error::StreamEvent;
use crate::request::{FinishReason, Request, RequestId, SequenceId, TenantId, TokenId};
use crate::scheduling::batch::BLOCK_TOKENS;
use crate::scheduling::block_hash::BlockHash;
use crate::time::Timestamp;

/// An input with those of its effects that the recording needs: small enough to be sent to another thread,
/// which converts it to lines.
#[derive(Debug)]
pub struct Observed {
    at: Timestamp,
    input: ObservedInput,
    tokens: Vec<(SequenceId, TokenId)>,
    ends: Vec<(SequenceId, FinishReason)>,
    closed: Vec<(RequestId, bool)>,
    step: Option<Step>,
}

#[derive(Debug)]
enum ObservedInput {
    Submit {
        request: Request,
        arrived: Timestamp,
    },
    Other(Event),
    /// Nothing further: a step's end, which its record describes, or masks, which are not recorded.
    None,
}

impl Observed {
    /// Records the effects of an input on an engine.
    pub fn new(input: &Input, at: Timestamp, effects: &[Effect]) -> Self {
        let mut step = None;
        let input = match input {
            Input::Submit { request, arrived } => {
                ObservedInput::Submit { request: request.clone(), arrived: *arrived }
            }
            Input::Abort(request) => ObservedInput::Other(Event::Abort(request.0)),
            Input::AbortSequence(id) => ObservedInput::Other(Event::AbortSequence(id.request.0, id.index)),
            Input::ReaderBehind { request, n_events } => {
                ObservedInput::Other(Event::ReaderBehind(request.0, *n_events))
            }
            Input::ReaderCaughtUp(request) => ObservedInput::Other(Event::ReaderCaughtUp(request.0)),
            Input::StepDone(done) => {
                let failed = done.result.is_err();
                step = Some(Step { epoch: done.epoch.0, failed, ..Step::default() });
                ObservedInput::None
            }
            Input::ExecutorMade { epoch, .. } => ObservedInput::Other(Event::ExecutorMade(epoch.0)),
            Input::ExecutorNotMade { epoch, .. } => ObservedInput::Other(Event::ExecutorNotMade(epoch.0)),
            Input::Drain { deadline } => ObservedInput::Other(Event::Drain(deadline.map(Timestamp::as_ns))),
            Input::Tick => ObservedInput::Other(Event::Tick),
            // A run without the store computes what this one brought back.
            Input::StoreOpened { .. }
            | Input::BlockWritten { .. }
            | Input::BlockRead { .. }
            | Input::ExportBlocks(_) => ObservedInput::None,
            Input::MasksEvaluated(_) => ObservedInput::None,
        };
        let mut observed = Self { at, input, tokens: Vec::new(), ends: Vec::new(), closed: Vec::new(), step };
        for effect in effects {
            observed.note(effect);
        }
        observed
    }

    /// Records a request that arrived at a gateway.
    pub fn submitted(request: Request, at: Timestamp) -> Self {
        Self { input: ObservedInput::Submit { request, arrived: at }, ..Self::empty(at) }
    }

    /// A continuation that ended at a gateway, with its tokens; `is_last`: the request ends with it.
    pub fn ended(
        id: SequenceId,
        output: Vec<TokenId>,
        reason: FinishReason,
        is_last: bool,
        at: Timestamp,
    ) -> Self {
        let tokens = output.into_iter().map(|token| (id, token)).collect();
        let closed = if is_last { vec![(id.request, false)] } else { Vec::new() };
        Self { tokens, ends: vec![(id, reason)], closed, ..Self::empty(at) }
    }

    fn empty(at: Timestamp) -> Self {
        let input = ObservedInput::None;
        Self { at, input, tokens: Vec::new(), ends: Vec::new(), closed: Vec::new(), step: None }
    }

    /// Nanoseconds since the origin.
    pub fn at_ns(&self) -> u64 {
        self.at.as_ns()
    }

    fn note(&mut self, effect: &Effect) {
        match effect {
            Effect::Deliver { request, event: StreamEvent::Token { index, report } } => {
                self.tokens.push((SequenceId { request: *request, index: *index }, report.chosen.token));
            }
            Effect::Deliver { request, event: StreamEvent::Finished { index, reason, .. } } => {
                self.ends.push((SequenceId { request: *request, index: *index }, *reason));
            }
            Effect::Close { request, failure, .. } => self.closed.push((*request, failure.is_some())),
            Effect::Refuse { request, .. } => self.closed.push((*request, true)),
            Effect::EndStep { record, .. } => {
                // One that took too long is ended by a tick, not by an input of its own.
                if let Some(step) = &mut self.step {
                    step.duration_ns = record.duration.0;
                    step.executing_ns = record.executing.0;
                    step.n_sequences = record.n_sequences;
                    step.n_tokens = record.n_tokens;
                    step.n_attended = record.n_attended;
                    step.n_sampled = record.n_sampled;
                    step.n_waiting = record.n_waiting;
                }
            }
            _ => {}
        }
    }

    /// Size in bytes while the line waits to be written.
    pub fn n_bytes(&self) -> usize {
        let prompt = match &self.input {
            ObservedInput::Submit { request, .. } => request.n_queued_tokens() * size_of::<TokenId>(),
            ObservedInput::Other(_) | ObservedInput::None => 0,
        };
        size_of::<Self>() + prompt + size_of_val(self.tokens.as_slice())
    }
}

/// Receiver of the inputs of an engine, or of the requests of a gateway. It must not wait.
pub trait LoadObserver: Debug + Send + Sync {
    /// Records an applied input, or the arrival or end of a request.
    fn observed(&self, observed: Observed);
}

/// Converts the events of an engine to lines.
#[derive(Debug)]
pub struct Recorder {
    salt: [u8; 32],
    max_open: usize,
    tenants: BTreeMap<TenantId, u32>,
    open: BTreeMap<RequestId, Open>,
}

/// A request that has not ended.
#[derive(Debug)]
struct Open {
    /// Name of the prompt's full blocks, which those of the outputs follow.
    prompt_name: BlockHash,
    request: Request,
    /// Tokens of each continuation; `None` after its end.
    outputs: Vec<Option<Vec<TokenId>>>,
}

/// Maximum number of tenants that have a number of their own; the others share one.
const MAX_TENANTS: usize = 1 << 16;

impl Recorder {
    /// Creates a recorder that names blocks under this salt and follows the outputs of at most `max_open`
    /// requests.
    pub fn new(salt: [u8; 32], max_open: usize) -> Self {
        Self { salt, max_open, tenants: BTreeMap::new(), open: BTreeMap::new() }
    }

    /// Adds the lines of an input to `lines`, in the order in which a replay needs them.
    pub fn lines(&mut self, observed: Observed, lines: &mut Vec<Line>) {
        let Observed { at, input, tokens, ends, closed, step } = observed;
        let at_ns = at.as_ns();
        let mut push = |event| lines.push(Line { at_ns, event });
        match input {
            ObservedInput::Submit { request, arrived } => {
                push(Event::Submit(Box::new(self.submit(&request, arrived))));
            }
            ObservedInput::Other(event) => push(event),
            ObservedInput::None => {}
        }
        step.into_iter().for_each(|step| push(Event::Step(step)));
        for (id, token) in tokens {
            if let Some(output) = self.output_mut(id) {
                output.push(token);
            }
        }
        for (id, reason) in ends {
            if let Some(end) = self.end(id, reason.into()) {
                push(Event::End(end));
            }
        }
        for (request, has_failed) in closed {
            let n_outputs = self.open.get(&request).map_or(0, |open| open.outputs.len() as u32);
            for index in 0..n_outputs {
                if let Some(end) = self.end(SequenceId { request, index }, EndReason::Error) {
                    push(Event::End(end));
                }
            }
            self.open.remove(&request);
            if has_failed {
                push(Event::Failed { id: request.0 });
            }
        }
    }

    fn output_mut(&mut self, id: SequenceId) -> Option<&mut Vec<TokenId>> {
        self.open.get_mut(&id.request)?.outputs.get_mut(id.index as usize)?.as_mut()
    }

    fn submit(&mut self, request: &Request, arrived: Timestamp) -> Submit {
        let (tenant, tenant_after) = self.tenant(&request.tenant);
        let root = self.root(request);
        let media = request.media.as_deref();
        let names: Vec<BlockHash> = BlockHash::names_after(root, 0, &request.prompt, media).collect();
        let outputs = (0..request.n).map(|index| request.output_so_far(index).map(<[TokenId]>::to_vec));
        if self.open.len() < self.max_open {
            let prompt_name = names.last().copied().unwrap_or(root);
            let open = Open { prompt_name, request: request.clone(), outputs: outputs.collect() };
            self.open.insert(request.id, open);
        }
        let lengths = request.outputs_so_far.iter();
        Submit {
            id: request.id.0,
            arrived_ns: arrived.as_ns(),
            tenant,
            tenant_after,
            priority: request.priority.0,
            adapter: request.adapter.map(|adapter| adapter.id.0),
            n: request.n,
            prompt_tokens: request.prompt.len() as u32,
            prompt_blocks: names.iter().map(BlockHash::key).collect(),
            max_tokens: request.sampling.max_tokens,
            min_tokens: request.sampling.min_tokens,
            prompt_logprobs: request.sampling.prompt_logprobs.is_some(),
            reads_history: request.sampling.reads_history(),
            is_special: request.constraint.is_some() || request.sampling.beams.is_some(),
            resumed: lengths.map(|output| output.as_ref().map(|output| output.len() as u32)).collect(),
        }
    }

    /// Number of a tenant, and of a new one the number of the tenant before it.
    fn tenant(&mut self, name: &TenantId) -> (u32, Option<u32>) {
        if let Some(number) = self.tenants.get(name) {
            return (*number, None);
        }
        let number = self.tenants.len() as u32;
        let before = self.tenants.range(..name).next_back().map(|(_, number)| *number);
        if self.tenants.len() < MAX_TENANTS {
            self.tenants.insert(name.clone(), number);
        }
        (number, before)
    }

    /// The root of a request's block names under the salt.
    fn root(&self, request: &Request) -> BlockHash {
        let adapter = request.adapter.map(|adapter| adapter.digest);
        let root = BlockHash::root(&request.tenant, request.cache_salt.as_deref(), adapter);
        let mut hasher = Sha256::new_with_prefix(self.salt);
        hasher.update(root.as_bytes());
        BlockHash::from_bytes(hasher.finalize().into())
    }

    fn end(&mut self, id: SequenceId, reason: EndReason) -> Option<End> {
        let open = self.open.get_mut(&id.request)?;
        let output = open.outputs.get_mut(id.index as usize)?.take()?;
        let (whole, rest) = open.request.prompt.as_chunks::<BLOCK_TOKENS>();
        let tokens = [rest, &output[..]].concat();
        let media = open.request.media.as_deref();
        let names = BlockHash::names_after(open.prompt_name, whole.len(), &tokens, media);
        Some(End {
            id: id.request.0,
            index: id.index,
            n_tokens: output.len() as u32,
            reason,
            blocks: names.map(|name| name.key()).collect(),
        })
    }
}
