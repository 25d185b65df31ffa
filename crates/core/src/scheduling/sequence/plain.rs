//! Sequences whose decoding needs nothing of a step but their place: no log-probabilities, constraint,
//! search, picture or recurrent state. Does not know steps.

use std::sync::Arc;

use super::{Running, Sequence, StepCounts};
use crate::request::{FinishReason, SamplingParams, SequenceId, TenantId, TokenId};
use crate::scheduling::block_pool::BlockPool;

/// Facts of a running sequence that its decoding reads in each step, kept beside its state.
#[derive(Debug)]
pub(crate) struct PlainDecoding {
    /// Id of the sequence.
    pub id: SequenceId,
    /// Tenant that pays for its tokens.
    pub tenant: TenantId,
    /// Sampling parameters.
    pub sampling: Arc<SamplingParams>,
    /// Number of prompt tokens.
    pub n_prompt: usize,
    /// Whether its sampling reads earlier tokens.
    pub reads_history: bool,
    /// Maximum number of output tokens.
    max_tokens: u32,
    /// The one token that ends it; `None` if there are several.
    end: Option<TokenId>,
}

impl Sequence<Running> {
    /// Lets the sequence decode with shares without content, if it can.
    pub(crate) fn allow_plain_shares(&mut self) {
        let request = &self.request;
        let sampling = &request.sampling;
        let needs_content = sampling.beams.is_some()
            || sampling.logprobs.is_some()
            || sampling.max_tokens == 0
            || request.constraint.is_some()
            || request.media.is_some()
            || self.state.recurrent.is_some();
        self.state.plain = (!needs_content).then(|| PlainDecoding {
            id: SequenceId { request: request.id, index: self.rank.index },
            tenant: request.tenant.clone(),
            sampling: Arc::clone(sampling),
            n_prompt: request.prompt.len(),
            reads_history: sampling.reads_history(),
            max_tokens: sampling.max_tokens,
            end: match (&sampling.eos_token_ids[..], &sampling.stop_token_ids[..]) {
                ([end], []) if !sampling.ignore_eos => Some(*end),
                _ => None,
            },
        });
    }

    /// Position of its one scheduled token, if its share needs no content: the token is an output token, and
    /// the next one is sampled.
    pub(crate) fn plain_start(&self) -> Option<usize> {
        let plain = self.state.plain.as_ref()?;
        let is_single = self.state.n_scheduled == 1 && self.state.n_scheduled_drafts == 0;
        if !is_single || self.state.n_to_draft > 0 || self.state.copied_block.is_some() {
            return None;
        }
        let start = self.n_planned();
        (start >= plain.n_prompt && start + 1 >= self.tokens.len()).then_some(start)
    }

    /// [`Self::ending`] of a sequence with plain shares.
    pub(crate) fn plain_ending(&self, limit: usize) -> Option<FinishReason> {
        let (plain, token) = (self.state.plain.as_ref()?, *self.tokens.last()?);
        let n_output = self.timeline.output_tokens;
        let by_request = match plain.end {
            Some(end) if token == end => Some(FinishReason::Stop { token: None }),
            Some(_) => (n_output >= plain.max_tokens).then_some(FinishReason::Length),
            None => plain.sampling.finish_at(token, n_output),
        };
        by_request.or_else(|| (self.tokens.len() >= limit).then_some(FinishReason::Length))
    }

    /// Notes that a share without content gave one more token, which was appended before.
    pub(crate) fn advance_plain(&mut self, pool: &mut BlockPool) {
        if self.state.copied_block.is_some() || !self.state.speculation.is_unused() {
            let step = StepCounts { n_known: 1, n_pushed: 1, ..StepCounts::default() };
            self.advance(step, pool);
        } else {
            self.state.n_computed += 1;
        }
        self.publish_blocks(pool);
        if !self.state.drafts.is_empty() && !self.is_in_flight() {
            self.set_drafts(&[]);
        }
    }
}
