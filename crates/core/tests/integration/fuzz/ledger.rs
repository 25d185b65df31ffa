//! Records the expected and the received output of each request, and checks every event and every batch.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use throng_core::prompt_media::{PromptMedia, PromptSpan};
use throng_core::request::{Adapter, FinishReason, Request, RequestId, SequenceId, TokenId};
use throng_core::scheduling::batch::{BLOCK_TOKENS, ChosenToken, ScheduledBatch, StepOutput};
use throng_core::scheduling::executor::ExecutorCapacity;
use throng_core::scheduling::scheduler::{Event, SchedulerConfig};
use throng_testkit::paper_executor::{PaperAnswer, PaperToken, paper_answer};

/// The open requests, and what was computed.
#[derive(Default)]
pub struct Ledger {
    open: BTreeMap<RequestId, Account>,
    /// Prefixes at block boundaries that were computed, with the scope in which they may be shared.
    computed: HashSet<(Owner, u64)>,
    /// Fewest tokens that must repeat before a draft that is looked up; none: no drafts are.
    min_match: Option<usize>,
    /// Whether the executor may be asked for drafts.
    asks_draft_model: bool,
    /// The first fault that was found.
    pub problem: Option<String>,
    pub n_finished: usize,
    pub n_hit_tokens: usize,
    pub n_aborted: usize,
    pub n_failed: usize,
    pub n_drafts: usize,
    pub n_accepted: usize,
    pub n_constrained: usize,
    pub n_looked_up: usize,
    pub n_beams: usize,
    pub n_copied: usize,
    pub n_accepted_looked_up: usize,
    pub n_own_drafts: usize,
    pub n_accepted_own: usize,
    pub n_carried: usize,
    /// Number of them in sequences that the token had ended.
    pub n_carried_in_vain: usize,
    /// The sequences of the batch before.
    before: Vec<SequenceId>,
    n_batches: usize,
    /// The number of the next batch that ends.
    n_ended_batches: usize,
}

/// Owner of a prefix: a tenant with a salt and an adapter, or with caching off one request.
type Owner = (Arc<str>, Option<Arc<str>>, Option<Adapter>, Option<RequestId>);

struct Account {
    request: Request,
    owner: Owner,
    answer: PaperAnswer,
    dequeued: bool,
    n_prompt_tokens: usize,
    prompt_done: bool,
    /// A step or a sequence of it was made to fail.
    may_fail: bool,
    /// None of its tokens may be computed.
    paused: bool,
    sequences: Vec<SequenceAccount>,
}

#[derive(Default)]
struct SequenceAccount {
    tokens: Vec<TokenId>,
    ended: bool,
    cancelled: bool,
    /// The position at which it continues unless it was preempted.
    n_computed: usize,
    /// The number of the batch in which it began, or began again.
    began_in: usize,
    /// The drafts that were proposed in its latest step.
    proposed: Vec<TokenId>,
    /// The drafts of the step in flight are not those.
    has_looked_up: bool,
}

impl Ledger {
    pub fn new(config: &SchedulerConfig) -> Self {
        let (method, min_match) = (config.speculation, config.prompt_lookup_min as usize);
        let asks_draft_model = method.asks_draft_model();
        Self { min_match: method.looks_up().then_some(min_match), asks_draft_model, ..Self::default() }
    }

    pub fn open(&mut self, request: &Request, capacity: &ExecutorCapacity, prefix_caching: bool) {
        let private = (!prefix_caching).then_some(request.id);
        let account = Account {
            owner: (request.tenant.0.clone(), request.cache_salt.clone(), request.adapter, private),
            answer: paper_answer(request, capacity),
            request: request.clone(),
            dequeued: false,
            n_prompt_tokens: 0,
            prompt_done: false,
            may_fail: false,
            paused: false,
            sequences: (0..request.n.max(request.n_sequences()))
                .map(|_| SequenceAccount::default())
                .collect(),
        };
        self.open.insert(request.id, account);
    }

    pub fn n_open(&self) -> usize {
        self.open.len()
    }

    pub fn cancel(&mut self, request: RequestId, index: Option<u32>) {
        let Some(account) = self.open.get_mut(&request) else { return };
        if account.request.beam_search().is_some() && index.is_some() {
            return;
        }
        for (i, sequence) in account.sequences.iter_mut().enumerate() {
            sequence.cancelled |= index.is_none_or(|index| index as usize == i);
        }
    }

    /// A request and the tokens of one of its continuations.
    pub fn tokens_of(&self, id: SequenceId) -> Option<(&Request, Vec<TokenId>)> {
        let account = self.open.get(&id.request)?;
        Some((&account.request, account.tokens_of(id.index)))
    }

    pub fn may_fail(&mut self, request: RequestId) {
        if let Some(account) = self.open.get_mut(&request) {
            account.may_fail = true;
        }
    }

    /// Records that the request's reader is behind, or has caught up.
    pub fn set_paused(&mut self, request: RequestId, paused: bool) {
        if let Some(account) = self.open.get_mut(&request) {
            account.paused = paused;
        }
    }

    /// The open requests that are paused.
    pub fn paused(&self) -> Vec<RequestId> {
        self.open.iter().filter(|(_, account)| account.paused).map(|(id, _)| *id).collect()
    }

    /// Checks a planned batch.
    pub fn check_batch(&mut self, batch: &ScheduledBatch) {
        self.n_copied += batch.moves().len();
        for scheduled in batch.sequences() {
            if let Err(problem) = self.check_sequence(batch, scheduled) {
                self.problem.get_or_insert(format!("sequence of {}: {problem}", scheduled.id));
            }
        }
        self.before = batch.sequences().iter().map(|scheduled| scheduled.id).collect();
        self.n_batches += 1;
    }

    /// Notes that the oldest batch that has not ended brought nothing.
    pub fn note_failed(&mut self) {
        self.n_ended_batches += 1;
    }

    fn check_sequence(
        &mut self,
        batch: &ScheduledBatch,
        scheduled: &throng_core::scheduling::batch::ScheduledSequence,
    ) -> Result<(), String> {
        let account = self.open.get_mut(&scheduled.id.request).ok_or("its request is not open")?;
        if account.request.beam_search().is_some() {
            self.n_beams += 1;
            account.check_beam(batch, scheduled, &self.computed)?;
            for known in account.beams_up_to(scheduled.start as usize + scheduled.n_known()) {
                let owner = &account.owner;
                self.computed.extend(
                    prefixes(&known, account.request.media.as_deref())
                        .map(|(_, prefix)| (owner.clone(), prefix)),
                );
            }
            return Ok(());
        }
        let n_prompt = account.request.prompt.len();
        let known = account.tokens_of(scheduled.id.index);
        let sequence = &mut account.sequences[scheduled.id.index as usize];
        if sequence.ended || sequence.cancelled {
            return Err("it has ended or was cancelled before".into());
        }
        if account.paused {
            return Err("it is paused".into());
        }
        let (start, n) = (scheduled.start as usize, scheduled.n_known());
        if let Some(sequence_idx) = scheduled.carried {
            self.n_carried += 1;
            let (request, sampling) = (&account.request, &account.request.sampling);
            if request.constraint.is_some() || sampling.reads_history() {
                return Err("its next token depends on one that the host does not know".into());
            }
            // It is the output token after those that are known and those that further steps in flight choose.
            if start < known.len()
                || start != sequence.n_computed
                || start + 1 - n_prompt >= sampling.max_tokens as usize
            {
                return Err("no token of it is to be carried".into());
            }
            if self.before.get(sequence_idx) != Some(&scheduled.id) {
                return Err("the token of another sequence is carried".into());
            }
        } else if known.get(start..start + n) != Some(&batch.tokens(scheduled)[..n]) {
            return Err("its tokens are not those of the request".into());
        }
        let begins_again = start != sequence.n_computed;
        if begins_again {
            sequence.proposed.clear();
            sequence.began_in = self.n_batches;
        }
        let drafts = batch.drafts(scheduled);
        sequence.has_looked_up = !sequence.proposed.starts_with(drafts);
        if sequence.has_looked_up && !self.min_match.is_some_and(|n| repeats(&known, n, drafts)) {
            return Err("its drafts are neither those that were proposed nor a repetition".into());
        }
        self.n_looked_up += if sequence.has_looked_up { drafts.len() } else { 0 };
        if scheduled.n_to_draft > 0 && (!self.asks_draft_model || !drafts.is_empty()) {
            return Err("the draft model is asked for drafts that it must not make".into());
        }
        let n_most = scheduled.n_drafts + scheduled.n_to_draft;
        if n_most > account.request.sampling.max_draft_tokens as usize {
            return Err("it has more drafts than the request allows".into());
        }
        if sequence.tokens.len() + n_most >= (account.request.sampling.max_tokens as usize).max(1) {
            return Err("it has more drafts than could become tokens".into());
        }
        self.n_drafts += scheduled.n_drafts;
        self.n_constrained += usize::from(scheduled.constraint.is_some());
        let n_to_come = if scheduled.carried.is_some() { start + 1 - known.len() } else { 0 };
        let wants_sample = start + n == known.len() + n_to_come && account.request.sampling.max_tokens > 0;
        if scheduled.sample != wants_sample || scheduled.n_prompt as usize != n_prompt {
            return Err("it samples too early or too late".into());
        }
        if begins_again || sequence.n_computed == 0 {
            self.n_hit_tokens += start;
            let needs_prompt = account.request.sampling.prompt_logprobs.is_some() && !account.prompt_done;
            if start % BLOCK_TOKENS != 0 || (start > 0 && needs_prompt) {
                return Err(format!("it begins at {start}"));
            }
            for (n_tokens, prefix) in prefixes(&known[..start], account.request.media.as_deref()) {
                if !self.computed.contains(&(account.owner.clone(), prefix)) {
                    return Err(format!(
                        "a hit on {n_tokens} tokens nobody computed for {:?}",
                        account.owner
                    ));
                }
            }
        }
        sequence.n_computed = start + n;
        Ok(())
    }

    /// Notes that the sequences of a batch were computed, and which drafts were accepted and proposed.
    pub fn note_computed(&mut self, batch: &ScheduledBatch, output: &StepOutput) {
        let batch_number = self.n_ended_batches;
        self.n_ended_batches += 1;
        for (sequence_idx, scheduled) in batch.sequences().iter().enumerate().take(output.n_sequences()) {
            let has_ended = self.open.get(&scheduled.id.request).is_none_or(|account| {
                account.sequences.get(scheduled.id.index as usize).is_some_and(|sequence| sequence.ended)
            });
            self.n_carried_in_vain += usize::from(scheduled.carried.is_some() && has_ended);
            let Some(account) = self.open.get_mut(&scheduled.id.request) else { continue };
            if account.request.beam_search().is_some() {
                continue;
            }
            let n_accepted = output.sampled(sequence_idx).len().saturating_sub(1);
            let mut known = account.tokens_of(scheduled.id.index);
            known.truncate(scheduled.start as usize + scheduled.n_known());
            let own_drafts = output.own_drafts(sequence_idx);
            let drafts = if own_drafts.is_empty() { batch.drafts(scheduled) } else { own_drafts };
            known.extend_from_slice(&drafts[..n_accepted]);
            self.n_own_drafts += own_drafts.len();
            self.n_accepted_own += if own_drafts.is_empty() { 0 } else { n_accepted };
            for (_, prefix) in prefixes(&known, account.request.media.as_deref()) {
                self.computed.insert((account.owner.clone(), prefix));
            }
            let sequence = &mut account.sequences[scheduled.id.index as usize];
            if sequence.began_in > batch_number {
                // It lost its blocks while this batch was in flight.
                continue;
            }
            if output.is_left_out(sequence_idx) {
                // Its last token is computed again, with the drafts that it had.
                sequence.n_computed -= 1;
                continue;
            }
            sequence.n_computed += n_accepted;
            sequence.proposed = output.drafts(sequence_idx).to_vec();
            self.n_accepted += n_accepted;
            self.n_accepted_looked_up += if sequence.has_looked_up { n_accepted } else { 0 };
        }
    }

    /// Records that all computed content was lost.
    pub fn forget_computed(&mut self) {
        self.computed.clear();
    }

    /// Checks an event.
    pub fn note(&mut self, event: &Event<'_>) {
        if let Err(problem) = self.judge(event) {
            self.problem.get_or_insert(format!("{event:?}: {problem}"));
        }
    }

    fn judge(&mut self, event: &Event<'_>) -> Result<(), String> {
        let id = match event {
            Event::Dequeued { request }
            | Event::PromptToken { request, .. }
            | Event::PromptDone { request, .. }
            | Event::Failed { request, .. } => *request,
            Event::Token { sequence, .. } | Event::Finished { sequence, .. } => sequence.request,
        };
        let account = self.open.get_mut(&id).ok_or("its request is not open")?;
        match event {
            Event::Dequeued { .. } if std::mem::replace(&mut account.dequeued, true) => Err("twice")?,
            Event::Dequeued { .. } => {}
            // A single continuation may be cancelled while the others wait.
            Event::Finished { reason: FinishReason::Abort, .. } => {}
            _ if !account.dequeued => Err("before it was dequeued")?,
            _ => {}
        }
        match event {
            Event::Dequeued { .. } => {}
            Event::PromptToken { token, .. } => {
                let expected = account.answer.prompt.get(account.n_prompt_tokens);
                account.n_prompt_tokens += 1;
                check_token(expected, token)?;
            }
            Event::PromptDone { .. } => {
                let complete = account.n_prompt_tokens == account.answer.prompt.len();
                if !complete || std::mem::replace(&mut account.prompt_done, true) {
                    Err("twice, or too early")?;
                }
            }
            Event::Token { sequence, token } => account.note_token(*sequence, token)?,
            Event::Finished { sequence, reason, timeline } => {
                self.n_aborted += usize::from(*reason == FinishReason::Abort);
                account.note_end(*sequence, *reason)?;
                let n_got = account.sequences[sequence.index as usize].tokens.len();
                if timeline.output_tokens as usize != n_got {
                    Err("its timeline counts other tokens")?;
                }
            }
            Event::Failed { .. } if !account.may_fail && !account.must_fail() => Err("nothing of it failed")?,
            Event::Failed { .. } => {
                self.n_failed += 1;
                self.open.remove(&id);
                return Ok(());
            }
        }
        if account.sequences[..account.request.n as usize].iter().all(|sequence| sequence.ended) {
            self.n_finished += 1;
            self.open.remove(&id);
        }
        Ok(())
    }
}

impl Account {
    fn tokens_of(&self, index: u32) -> Vec<TokenId> {
        let output = &self.sequences[index as usize].tokens;
        self.request.prompt.iter().chain(output).copied().collect()
    }

    /// The tokens of all beams that there are on the way, up to `n_tokens`.
    fn beams_up_to(&self, n_tokens: usize) -> impl Iterator<Item = Vec<TokenId>> {
        let beams = self.answer.beams.iter().map(|output| [&self.request.prompt, &output[..]].concat());
        beams.filter(move |known| known.len() >= n_tokens).map(move |mut known| {
            known.truncate(n_tokens);
            known
        })
    }

    /// Checks the sequence of a beam: there is a beam with its tokens, and what it does not compute was
    /// computed before.
    fn check_beam(
        &self,
        batch: &ScheduledBatch,
        scheduled: &throng_core::scheduling::batch::ScheduledSequence,
        computed: &HashSet<(Owner, u64)>,
    ) -> Result<(), String> {
        if self.paused || self.sequences[scheduled.id.index as usize].cancelled {
            return Err("it is paused or was cancelled before".into());
        }
        if scheduled.n_drafts > 0 || scheduled.constraint.is_some() {
            return Err("a beam with drafts or a constraint".into());
        }
        let (start, end) = (scheduled.start as usize, scheduled.start as usize + scheduled.n_known());
        let is_computed = |known: &Vec<TokenId>| {
            let mut prefixes = prefixes(&known[..start], self.request.media.as_deref());
            prefixes.all(|(_, prefix)| computed.contains(&(self.owner.clone(), prefix)))
        };
        let mut fitting = self.beams_up_to(end).filter(|known| known[start..] == *batch.tokens(scheduled));
        if fitting.any(|known| is_computed(&known)) {
            return Ok(());
        }
        Err(format!("no beam has its tokens at {start}, or nobody computed those before"))
    }

    /// Whether a continuation has come to the position at which no token can be chosen.
    fn must_fail(&self) -> bool {
        let mut sequences = self.sequences.iter().zip(&self.answer.sequences);
        sequences.any(|(sequence, (tokens, reason))| {
            !sequence.ended && *reason == FinishReason::Error && sequence.tokens.len() == tokens.len()
        })
    }

    fn note_token(&mut self, id: SequenceId, token: &ChosenToken<'_>) -> Result<(), String> {
        let sequence = &mut self.sequences[id.index as usize];
        if sequence.ended || sequence.cancelled || !self.prompt_done {
            return Err("a token too early or too late".into());
        }
        let expected = self.answer.sequences[id.index as usize].0.get(sequence.tokens.len());
        sequence.tokens.push(token.chosen.token);
        check_token(expected, token)
    }

    fn note_end(&mut self, id: SequenceId, reason: FinishReason) -> Result<(), String> {
        let sequence = &mut self.sequences[id.index as usize];
        let (tokens, expected) = &self.answer.sequences[id.index as usize];
        if std::mem::replace(&mut sequence.ended, true) {
            return Err("twice".into());
        }
        match reason {
            FinishReason::Abort if sequence.cancelled => Ok(()),
            _ if reason == *expected && sequence.tokens.len() == tokens.len() => Ok(()),
            _ => Err(format!("expected {expected:?} after {} tokens", tokens.len())),
        }
    }
}

fn check_token(expected: Option<&PaperToken>, token: &ChosenToken<'_>) -> Result<(), String> {
    match expected {
        Some(expected) if expected.chosen == token.chosen && expected.top == token.top => Ok(()),
        _ => Err(format!("expected {expected:?}")),
    }
}

/// Whether `drafts` are what followed where the last `min_match` of the tokens, or more, stood before.
fn repeats(tokens: &[TokenId], min_match: usize, drafts: &[TokenId]) -> bool {
    let text: Vec<TokenId> = tokens.iter().chain(drafts).copied().collect();
    let Some(start) = tokens.len().checked_sub(min_match) else { return false };
    (min_match..tokens.len())
        .any(|end| text[end - min_match..end] == tokens[start..] && text[end..].starts_with(drafts))
}

/// The prefixes of `tokens` that end at a block boundary: their length and a hash of them, and of what they
/// stand for.
fn prefixes(tokens: &[TokenId], media: Option<&PromptMedia>) -> impl Iterator<Item = (usize, u64)> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let media = media.cloned().unwrap_or_default();
    tokens.iter().enumerate().filter_map(move |(i, &token)| {
        let mut mix = |number: u32| {
            hash = (hash ^ u64::from(number)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        };
        mix(token);
        if let Some(PromptSpan { start, len, digest, .. }) = media.span_at(i as u32) {
            [1 + start, *len, u32::from(digest.0[0])].into_iter().for_each(&mut mix);
        }
        media.rotary_position(i as u32).0.into_iter().for_each(mix);
        ((i + 1) % BLOCK_TOKENS == 0).then_some((i + 1, hash))
    })
}
