//! Planning a step. Sequences that need only one token come first, so that decoding waits for no prompt; then
//! running prompts, in chunks; then waiting sequences; then drafts. Prompts of light tenants are computed
//! before ([`super::fairness`]). Does not know the step's result.

use std::sync::Arc;

use super::ahead::Ahead;
use super::budget::StepBudget;
use super::encoding::push_encodings;
use super::fairness::has_others;
use super::media::{least_chunk, without_cut};
use super::plain::push_plain;
use super::restoring::{find_start, push_traffic};
use super::shares::Lack;
use super::{Emit, Event, Scheduler, Step};
use crate::request::TokenId;
use crate::scheduling::batch::{BLOCK_TOKENS, NewSequence};
use crate::scheduling::block_table::blocks_for;
use crate::scheduling::sequence::{Running, Sequence, Share, Start};
use crate::time::Timestamp;
use crate::timeline::request_trace::QueueCause;

/// Placeholder for a token that the executor carries from the step before; it is not read.
const CARRIED: TokenId = 0;

/// Factor by which chunks may lengthen a step on a machine too slow for the target.
const MOST_SLOWDOWN: f64 = 1.5;

impl Scheduler {
    /// Begins the next step; `None` if there are no tokens to compute.
    ///
    /// # Panics
    /// When the maximum number of steps is in flight.
    pub fn plan(&mut self, now: Timestamp, emit: &mut Emit<'_>) -> Option<Step> {
        assert!(self.n_in_flight() < self.max_steps_in_flight(), "a step more than there may be in flight");
        self.pool.set_now(now);
        self.report_ended(emit);
        self.continue_restoring(now);
        let mut budget = StepBudget::new(self.config.max_batch_tokens as usize);
        if !self.schedule_light_alone(&mut budget, now, emit) {
            budget = StepBudget::new(self.config.max_batch_tokens as usize);
            self.schedule_all(&mut budget, now, emit);
        }
        self.make_beams_give_way(&mut budget, now, emit);
        self.extend_chunks(&mut budget);
        self.choose_drafts();
        self.schedule_drafts(&mut budget);
        self.build_step(&budget, now)
    }

    /// Gives tokens of the step to all sequences, first to those that need only one token.
    fn schedule_all(&mut self, budget: &mut StepBudget, now: Timestamp, emit: &mut Emit<'_>) {
        let n_preempted = self.counters.preemptions;
        self.schedule_single_tokens(budget);
        if budget.shape.n_tokens > 0 {
            let without_chunks_ms = self.step_time.predict_ms(budget.shape).unwrap_or(0.0);
            let slowed_ms = MOST_SLOWDOWN * without_chunks_ms;
            budget.target_ms = Some(f64::from(self.config.inter_token_target_ms).max(slowed_ms));
        }
        let mut has_blocks = self.counters.preemptions == n_preempted;
        has_blocks = has_blocks && self.schedule_light(budget, now, emit);
        self.shorten(budget, now);
        let n_preempted = self.counters.preemptions;
        self.schedule_chunks(|_| true, budget);
        // Where nothing is admitted, the blocks are used up.
        self.waiting.cause = Some(QueueCause::Blocks);
        if has_blocks && self.counters.preemptions == n_preempted {
            self.admit(false, budget, now, emit);
        }
    }

    /// Releases blocks and places of beams that wait for other beams, the last one first, if nothing can be
    /// computed otherwise.
    fn make_beams_give_way(&mut self, budget: &mut StepBudget, now: Timestamp, emit: &mut Emit<'_>) {
        while !budget.has_work()
            && self.n_in_flight() == 0
            && !self.waiting.is_empty()
            && let Some(i) = self.last_idle_running()
        {
            self.preempt(i, budget);
            self.admit(false, budget, now, emit);
        }
    }

    /// Gives a token to each sequence that needs just one.
    fn schedule_single_tokens(&mut self, budget: &mut StepBudget) {
        // Each stage of a pipeline has its share of the sequences.
        let mut n_left = self.running.len().div_ceil(self.admission.n_stages());
        let mut i = 0;
        while i < self.running.len() && budget.tokens_left > 0 && n_left > 0 {
            if self.running[i].n_missing() == 1 && self.make_room(i, 1, budget) {
                self.schedule(i, 1, budget);
                n_left -= 1;
            }
            i += 1;
        }
    }

    /// Gives chunks to those running sequences of `whom` that have more tokens to compute.
    pub(super) fn schedule_chunks(
        &mut self,
        whom: impl Fn(&Sequence<Running>) -> bool,
        budget: &mut StepBudget,
    ) {
        let is_catching_up = |s: &Sequence<Running>| s.n_missing() > 1 && s.state.n_scheduled == 0 && whom(s);
        let mut n_catching_up = self.running.iter().filter(|s| is_catching_up(s)).count();
        if n_catching_up == 0 {
            return;
        }
        let mut i = 0;
        while i < self.running.len() && budget.tokens_left > 0 {
            if is_catching_up(&self.running[i]) {
                let (start, wanted) = (self.running[i].n_planned(), self.running[i].n_missing());
                n_catching_up = n_catching_up.saturating_sub(1);
                let others = n_catching_up > 0 || self.may_admit();
                let n = budget.chunk(&self.step_time, start, wanted, others);
                let least = least_chunk(&self.admission, &self.running[i].request, start);
                if n > 0 && self.make_room(i, least, budget) {
                    let most = budget.tokens_left.min(self.n_allocatable(i)).min(wanted);
                    let n = without_cut(&self.admission, &self.running[i].request, start, n.min(most), most);
                    let n = self.encode_before(i, n, others, budget);
                    if n > 0 {
                        self.schedule(i, n, budget);
                        budget.n_chunks += 1;
                    }
                }
            }
            i += 1;
        }
    }

    /// Gives the tokens that halving left over to sequences that can use them.
    fn extend_chunks(&mut self, budget: &mut StepBudget) {
        for i in 0..self.running.len() {
            let sequence = &self.running[i];
            let n_scheduled = sequence.state.n_scheduled;
            let wanted = sequence.n_missing() - n_scheduled;
            if n_scheduled == 0 || wanted == 0 || budget.tokens_left == 0 {
                continue;
            }
            let start = sequence.n_planned() + n_scheduled;
            let more = budget.chunk(&self.step_time, start, wanted, false);
            let most =
                (n_scheduled + budget.tokens_left).min(self.n_allocatable(i)).min(n_scheduled + wanted);
            let n = (n_scheduled + more).min(most);
            let n =
                without_cut(&self.admission, &self.running[i].request, self.running[i].n_planned(), n, most);
            let n = self.n_encoded(i, self.running[i].n_planned(), n);
            let sequence = &self.running[i];
            if n > n_scheduled {
                budget.give_back(sequence.n_planned(), n_scheduled);
                self.schedule(i, n, budget);
            }
        }
    }

    /// Starts waiting sequences, with `only_light` those of light tenants, while there are places, tokens of
    /// the step and blocks for them. To make room for a tenant below its share, sequences of a tenant above
    /// its share are preempted ([`Scheduler::give_way`]). A sequence that waits for a block that is being
    /// computed does not hold up others.
    pub(super) fn admit(
        &mut self,
        only_light: bool,
        budget: &mut StepBudget,
        now: Timestamp,
        emit: &mut Emit<'_>,
    ) {
        self.waiting.cause = Some(QueueCause::StepTokens);
        if self.waiting.is_empty() {
            return;
        }
        let mut n_promised: usize = self.running.iter().map(Scheduler::n_promised_blocks).sum();
        let max_deferred = self.config.max_batch_sequences as usize;
        while !self.waiting.is_empty() && budget.tokens_left > 0 && self.deferred.len() < max_deferred {
            let has_low_share = self.first_is_light();
            if only_light && !has_low_share {
                break;
            }
            let lack = match self.may_admit() {
                true => self.admit_first(has_low_share, &mut n_promised, budget, now, emit),
                false => Err(Some(Lack::Sequence)),
            };
            match lack {
                Ok(()) => {}
                Err(Some(lack)) if self.give_way(lack, &mut n_promised, budget) => {}
                Err(lack) => {
                    self.waiting.cause = Some(lack.map_or(QueueCause::StepTokens, Lack::cause));
                    break;
                }
            }
        }
        for sequence in self.deferred.drain(..) {
            self.waiting.put_back(sequence);
        }
    }

    /// Starts or defers the first waiting sequence.
    ///
    /// # Errors
    /// When it does not fit; the error has the missing resources other than tokens of the step. No later
    /// sequence may then be admitted first, or a long request would wait for ever.
    fn admit_first(
        &mut self,
        has_low_share: bool,
        n_promised: &mut usize,
        budget: &mut StepBudget,
        now: Timestamp,
        emit: &mut Emit<'_>,
    ) -> Result<(), Option<Lack>> {
        let others = self.waiting.len() > 1 && !has_low_share;
        let Some(head) = self.waiting.first_mut() else { return Err(None) };
        let Some(progress) = self.requests.get_mut(&head.request.id) else { return Err(None) };
        let at_once = self.admission.takes_whole_prompts();
        let needs_whole_prompt = at_once || progress.needs_whole_prompt();
        self.hits.clear();
        let mut start = Start::default();
        if !needs_whole_prompt {
            start = find_start(head, &mut self.hits, &self.admission, &self.step_time, &mut self.pool);
        }
        let (n_tokens, n_hits) = (head.tokens().len(), self.hits.len());
        let n_cached = (n_hits + start.restorable.n_blocks()) * BLOCK_TOKENS;
        let n_continued = if self.pool.states().is_empty() { n_hits } else { n_cached / BLOCK_TOKENS };
        let is_computing_for_it = |other: &Sequence<Running>| match needs_whole_prompt {
            true => other.request.id == head.request.id,
            false => other.rank.priority <= head.rank.priority && head.could_share_next(n_continued, other),
        };
        if self.running.iter().any(is_computing_for_it) {
            self.deferred.extend(self.waiting.take_first());
            return Ok(());
        }
        let states = self.pool.states();
        if !states.is_empty() && states.n_available() == 0 {
            // Checkpoints are just being read or made; the next step has room.
            return Err(None);
        }
        // Hits that nobody holds are still counted as available.
        let n_revived = self.hits.iter().filter(|&&block| self.pool.n_references(block) == 0).count();
        let n_wanted = blocks_for(n_tokens) - n_hits + n_revived;
        // One block ahead for each sequence that runs: admitting must not lead straight to a preemption.
        let n_lacking = (n_wanted + *n_promised + self.running.len()).saturating_sub(self.pool.n_available());
        if n_lacking > 0 {
            return Err(Some(Lack::Blocks(n_lacking)));
        }
        let n = match at_once {
            true => budget.whole(n_tokens),
            false => budget.chunk(&self.step_time, n_cached, n_tokens - n_cached, others),
        };
        let n = without_cut(&self.admission, &head.request, n_cached, n, budget.tokens_left);
        if n == 0 {
            return Err(None);
        }
        if !std::mem::replace(&mut progress.started, true) {
            self.queue.leave(progress.request.n_queued_tokens());
            emit(Event::Dequeued { request: progress.request.id });
        }
        let Some(head) = self.waiting.take_first() else { return Err(None) };
        if head.state.is_charged {
            self.waiting.charge_prompt(&head.request.tenant, n_tokens - n_cached);
        }
        let is_first_start = head.timeline.first_scheduled.is_none();
        if is_first_start {
            let n_found = start.n_begun * BLOCK_TOKENS;
            self.counters.note_lookup(if needs_whole_prompt { 0 } else { n_tokens }, n_found);
        }
        let longest = self.admission.max_sequence_tokens();
        let sequence = head.start(&self.hits, &start, longest, &mut self.pool, now);
        let Some(mut sequence) = self.begin_restoring(sequence, start.restorable, is_first_start, now) else {
            return Ok(());
        };
        self.note_light(&mut sequence, has_low_share, now);
        let i = self.insert_running(sequence);
        self.start_masks(i, now);
        self.schedule_first(i, n, budget);
        *n_promised += Scheduler::n_promised_blocks(&self.running[i]);
        Ok(())
    }

    /// Gives a sequence that was just started its first chunk of at most `n` tokens; none if its last token
    /// waits for its masks.
    fn schedule_first(&mut self, i: usize, n: usize, budget: &mut StepBudget) {
        let sequence = &self.running[i];
        let most = n.min(sequence.n_missing());
        if most == 0 {
            return;
        }
        let n = without_cut(&self.admission, &sequence.request, sequence.n_planned(), most, most);
        let n = self.encode_before(i, n, !self.waiting.is_empty(), budget);
        if n > 0 {
            self.schedule(i, n, budget);
            budget.n_chunks += 1;
        }
    }

    /// Adds a sequence behind all running ones, then moves it ahead of those of its own tenant with a
    /// larger rank: they change places, so that all other tenants keep theirs. Returns its index.
    fn insert_running(&mut self, mut sequence: Sequence<Running>) -> usize {
        if self.has_plain_shares {
            sequence.allow_plain_shares();
        }
        let mut place = self.running.len();
        self.running.push(sequence);
        for i in (0..place).rev() {
            let (earlier, new) = (&self.running[i], &self.running[place]);
            if earlier.request.tenant != new.request.tenant {
                continue;
            }
            if earlier.rank < new.rank {
                break;
            }
            self.running.swap(i, place);
            place = i;
        }
        place
    }

    fn may_admit(&self) -> bool {
        !self.waiting.is_empty() && self.running.len() < self.config.max_batch_sequences as usize
    }

    /// Number of blocks that a running sequence still needs for its tokens.
    pub(super) fn n_promised_blocks(sequence: &Sequence<Running>) -> usize {
        sequence.n_missing_blocks(sequence.tokens().len())
    }

    /// Number of tokens that sequence `i` can have computed in a step with the blocks that it has and could
    /// get.
    pub(super) fn n_allocatable(&self, i: usize) -> usize {
        let n_blocks = self.running[i].blocks().len() + self.pool.n_available();
        n_blocks * BLOCK_TOKENS - self.running[i].n_planned()
    }

    /// Makes room for `n` more tokens of sequence `i` by preempting the last running sequences. The last one
    /// is the least urgent of the tenant that started one last: a priority only decides between sequences
    /// of its tenant. `false` if the last one is the sequence itself, or `i` is in flight: tokens that it
    /// has ahead of others take no blocks from them.
    fn make_room(&mut self, i: usize, n: usize, budget: &mut StepBudget) -> bool {
        while self.n_allocatable(i) < n {
            if self.running[i].is_in_flight() {
                return false;
            }
            let Some(last) = self.running.len().checked_sub(1) else { return false };
            self.preempt(last, budget);
            if i == self.running.len() {
                return false;
            }
        }
        true
    }

    /// Preempts sequence `i`: its blocks and its share of the step are released, and it waits and is computed
    /// again later. Results of steps in flight for it are dropped.
    pub(super) fn preempt(&mut self, i: usize, budget: &mut StepBudget) {
        let sequence = self.running.remove(i);
        budget.give_back(sequence.n_planned(), sequence.state.n_scheduled);
        self.counters.preemptions += 1;
        let sequence = sequence.preempt(&mut self.pool);
        self.wait_again(sequence);
    }

    /// Gives sequence `i` a share of `n` tokens in the step, with the blocks for them.
    pub(super) fn schedule(&mut self, i: usize, n: usize, budget: &mut StepBudget) {
        let sequence = &mut self.running[i];
        let start = sequence.n_planned();
        sequence.allocate(start + n, &mut self.pool);
        sequence.state.n_scheduled = n;
        budget.take(start, n);
    }

    fn build_step(&mut self, budget: &StepBudget, now: Timestamp) -> Option<Step> {
        let shape = budget.shape;
        let has_traffic = self.plan_traffic();
        if shape.n_tokens == 0 && !has_traffic && !self.running.iter().any(Sequence::encodes) {
            return None;
        }
        let number = self.n_planned;
        let ahead = Ahead::new(&self.config, &self.admission);
        let n_buffers = self.batches.len() as u64;
        let shared = &mut self.batches[(number % n_buffers) as usize];
        if Arc::get_mut(shared).is_none() {
            // An executor that hangs still reads it.
            *shared = Arc::default();
        }
        let batch = Arc::get_mut(shared)?;
        batch.clear();
        push_traffic(&mut self.pool, batch);
        push_encodings(&mut self.running, batch);
        batch.set_has_others(has_others(&self.running));
        self.pool.states_mut().take_copies().for_each(|copy| batch.push_state_copy(copy));
        for sequence in &mut self.running {
            if sequence.state.n_scheduled == 0 {
                sequence.pass_step();
                continue;
            }
            if self.has_plain_shares && push_plain(sequence, &ahead, number, batch) {
                continue;
            }
            let (tokens, start) = (sequence.tokens(), sequence.n_planned());
            let carried_from = sequence.carried_from();
            let (n_drafts, n_to_draft) = (sequence.state.n_scheduled_drafts, sequence.state.n_to_draft);
            let end = start + sequence.state.n_scheduled - n_drafts;
            let request = &sequence.request;
            let search = request.sampling.beams.and_then(|_| self.requests.get(&request.id)?.beams.as_ref());
            let (sampling, constraint) = match search {
                Some(search) => (search.beams.step_sampling(), &None),
                None => (&request.sampling, &request.constraint),
            };
            sequence.copy().into_iter().for_each(|copy| batch.push_move(copy));
            let sample = end >= tokens.len() && sampling.max_tokens > 0;
            batch.push(NewSequence {
                id: sequence.id(),
                start: start as u32,
                n_prompt: sequence.n_prompt() as u32,
                next_prompt_token: sequence.request.prompt.get(end).copied(),
                sample,
                sampling: Arc::clone(sampling),
                constraint: constraint.clone().filter(|_| sample),
                adapter: sequence.request.adapter.map(|adapter| adapter.id),
                tokens: if carried_from.is_some() { &[CARRIED] } else { &tokens[start..end] },
                drafts: if n_to_draft > 0 { &[] } else { &sequence.drafts()[..n_drafts] },
                blocks: &sequence.blocks()[..blocks_for(end + n_drafts)],
                history: if sample && sampling.reads_history() { tokens } else { &[] },
                output: if sample && constraint.is_some() { &tokens[sequence.n_prompt()..] } else { &[] },
            });
            request.media.iter().for_each(|media| batch.set_media(Arc::clone(media), Some(sequence.root())));
            if n_to_draft > 0 {
                batch.ask_for_drafts(n_drafts);
            }
            if sample && constraint.is_some() {
                let n_own = if n_to_draft > 0 { 0 } else { n_drafts };
                sequence.give_masks(n_own, self.slow_masks.next_number(), batch);
            }
            let state = sequence.plan_state(sequence.state.n_scheduled, &mut self.pool);
            state.into_iter().for_each(|state| batch.set_state(state));
            if let Some(sequence_idx) = carried_from {
                batch.carry_token(sequence_idx);
            }
            sequence.join_step(Share {
                step: number,
                sequence_idx: batch.n_shares() as u32 - 1,
                n_tokens: sequence.state.n_scheduled as u32,
                chooses: sample,
                may_be_followed: !sample || (n_drafts == 0 && ahead.can_carry(sequence, end)),
            });
        }
        let batch = Arc::clone(shared);
        self.n_planned += 1;
        Some(Step { batch, started: now, shape, number })
    }
}
