//! A running request: merges the events of its prompts' generations into text and reports of numbered
//! choices. Does not know the protocol.

mod unfinished;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use throng_api::answer::KeptTokens;
use throng_core::request::{CacheMark, FinishReason, SamplingParams, TokenId};
use throng_fleet::adapters::LoadedAdapter;
use throng_http::memory::Reservation;
use throng_text::{DetokenizeOptions, Detokenizer, Tokenizer};
use tokio::time::Instant;

use throng_fleet::replica::{Generation, ReplicaError, ReplicaEvent, Timing, TokenReport};

use self::unfinished::Unfinished;
use super::client_error::{BlamedParams, client_error};
use super::moderating::Moderating;
use super::output::Output;
use crate::caller::Caller;
use crate::limits::Charge;
use crate::moderation::Moderation;
use crate::served_model::ModelEntry;
use throng_api::ApiError;
use throng_cache::CacheUse;
use throng_metering::observation::GenerationRecord;

/// Settings for decoding tokens of all choices to text.
#[derive(Debug, Clone)]
pub(crate) struct TextOptions {
    /// Tokenizer of the model.
    pub tokenizer: Arc<Tokenizer>,
    /// Rules for text and stop strings.
    pub detokenize: DetokenizeOptions,
}

/// A running request. Dropping it ends its unfinished choices.
#[derive(Debug)]
pub(crate) struct Session {
    model: Arc<ModelEntry>,
    prompts: Vec<PromptState>,
    blamed: BlamedParams,
    stop: Vec<String>,
    keeps_stop_tokens: bool,
    first_polled: usize,
    memory: Vec<Reservation>,
    caller: Arc<Caller>,
    record: GenerationRecord,
    /// Adapter, kept in memory while the request runs.
    adapter: Option<LoadedAdapter>,
    /// Moderation of the outputs.
    moderating: Option<Moderating>,
    /// Charge of the key's limits, whose unused part is returned at the end.
    charge: Option<Charge>,
    /// Outputs that were received and not returned yet.
    ahead: VecDeque<Output>,
}

/// A prompt with its running generation.
#[derive(Debug)]
pub(crate) struct BegunPrompt {
    /// Generation of the tokens.
    pub generation: Box<dyn Generation>,
    /// Origin of the tokens, if they may be shared.
    pub cache_use: Option<CacheUse>,
    /// Number of continuations.
    pub n: u32,
    /// Number of prompt tokens.
    pub n_tokens: usize,
    /// Prefixes that the client asks to keep.
    pub cache_marks: Vec<CacheMark>,
    /// Sampling parameters.
    pub sampling: Arc<SamplingParams>,
}

#[derive(Debug)]
struct PromptState {
    /// `None` once all choices have ended.
    generation: Option<Box<dyn Generation>>,
    n_tokens: usize,
    cache_marks: Vec<CacheMark>,
    n_cached: u32,
    sampling: Arc<SamplingParams>,
    choices: Vec<ChoiceState>,
}

#[derive(Debug)]
struct ChoiceState {
    detokenizer: Option<Detokenizer>,
    n_tokens: u32,
    last_token_at: Option<Instant>,
    stopped: Option<usize>,
    has_ended: bool,
}

impl Session {
    /// Creates a session over generations that have just begun, one for each prompt. `blamed` has the
    /// parameters of the prompt and the constraint. Holds `memory` until it is dropped, and then reports to
    /// `context`.
    pub fn new(
        model: Arc<ModelEntry>,
        prompts: Vec<BegunPrompt>,
        blamed: BlamedParams,
        text: Option<&TextOptions>,
        memory: Vec<Reservation>,
        caller: Arc<Caller>,
    ) -> Self {
        let n_choices = prompts.iter().map(|prompt| prompt.n as usize).sum();
        let n_prompt_tokens = prompts.iter().map(|prompt| prompt.n_tokens).sum();
        let read = caller.arrived.elapsed();
        let mut record = GenerationRecord::new(model.served.id(), n_choices, n_prompt_tokens, read);
        prompts.iter().for_each(|prompt| record.trace(prompt.generation.trace()));
        record.cache_use = prompts.iter().filter_map(|prompt| prompt.cache_use).max();
        let choice = || ChoiceState {
            detokenizer: text.map(|t| Detokenizer::new(t.tokenizer.clone(), t.detokenize.clone())),
            n_tokens: 0,
            last_token_at: None,
            stopped: None,
            has_ended: false,
        };
        let prompt = |begun: BegunPrompt| PromptState {
            generation: Some(begun.generation),
            n_tokens: begun.n_tokens,
            cache_marks: begun.cache_marks,
            n_cached: 0,
            sampling: begun.sampling,
            choices: (0..begun.n).map(|_| choice()).collect(),
        };
        Self {
            model,
            prompts: prompts.into_iter().map(prompt).collect(),
            blamed,
            stop: text.map(|t| t.detokenize.stop.clone()).unwrap_or_default(),
            keeps_stop_tokens: text.is_some_and(|t| t.detokenize.include_stop_str_in_output),
            first_polled: 0,
            memory,
            caller,
            record,
            adapter: None,
            moderating: None,
            charge: None,
            ahead: VecDeque::new(),
        }
    }

    /// Sets the adapter, which is kept in memory as long as the session.
    pub fn with_adapter(mut self, adapter: Option<LoadedAdapter>) -> Self {
        self.adapter = adapter;
        self
    }

    /// Sets the moderation of the outputs.
    pub fn with_moderation(mut self, moderation: &Arc<Moderation>) -> Self {
        self.moderating = Moderating::new(moderation, &self.caller.key_holder(), self.n_choices());
        self
    }

    /// Sets the charge, from which usage is deducted.
    pub fn with_charge(mut self, charge: Charge) -> Self {
        self.charge = Some(charge).filter(Charge::is_counted);
        self
    }

    /// Holds this reservation too until the session is dropped.
    pub fn keep(&mut self, memory: Reservation) {
        self.memory.push(memory);
    }

    /// Error for the client from [`Output::Failed`].
    pub fn client_error(&self, error: &ReplicaError) -> ApiError {
        let request_id = self.caller.id_text();
        tracing::warn!(request = request_id, %error, "a request failed");
        client_error(error, &self.blamed, &self.model, request_id)
    }

    /// Origin of the tokens, if they may be shared; of several prompts, the one with the most work.
    pub fn cache_use(&self) -> Option<CacheUse> {
        self.record.cache_use
    }

    /// Number of choices, over all prompts.
    pub fn n_choices(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.choices.len()).sum()
    }

    /// Waits for the next output; `None` after the last. Cancel-safe.
    pub async fn next(&mut self) -> Option<Output> {
        std::future::poll_fn(|cx| self.poll_output(cx)).await
    }

    /// Polling form of [`Self::next`].
    pub fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<Option<Output>> {
        match self.ahead.pop_front() {
            Some(output) => Poll::Ready(Some(output)),
            None => self.poll_moderated(cx),
        }
    }

    /// Waits until a choice has a token or has ended; [`Self::next`] returns all outputs.
    ///
    /// # Errors
    /// When the request fails first.
    pub async fn begun(&mut self) -> Result<(), ReplicaError> {
        let is_prompt = |output: &Output| matches!(output, Output::Prompt { .. });
        while self.ahead.iter().all(is_prompt) {
            match self.next_that_comes().await {
                Some(Output::Failed(error)) => return Err(error),
                Some(output) => self.ahead.push_back(output),
                None => break,
            }
        }
        Ok(())
    }

    async fn next_that_comes(&mut self) -> Option<Output> {
        std::future::poll_fn(|cx| self.poll_moderated(cx)).await
    }

    fn poll_moderated(&mut self, cx: &mut Context<'_>) -> Poll<Option<Output>> {
        let Some(mut moderating) = self.moderating.take() else { return self.poll_next(cx) };
        let mut ended = Vec::new();
        let polled = moderating.poll(cx, |cx| self.poll_next(cx), &mut ended);
        self.moderating = Some(moderating);
        ended.into_iter().for_each(|choice_idx| self.end_choice(choice_idx));
        polled
    }

    /// Notes that a choice needs no more tokens.
    fn end_choice(&mut self, choice_idx: usize) {
        let n = self.prompts.first().map_or(1, |prompt| prompt.choices.len()).max(1);
        let Some(prompt) = self.prompts.get_mut(choice_idx / n) else { return };
        if let Some(generation) = &mut prompt.generation {
            generation.abort_continuation((choice_idx % n) as u32);
        }
    }

    /// Polls prompts in turn, so that a prompt that is always ready does not delay the others.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Output>> {
        let n_prompts = self.prompts.len();
        let mut all_ended = true;
        for i in 0..n_prompts {
            let prompt_idx = (self.first_polled + i) % n_prompts;
            while let Some(generation) = &mut self.prompts[prompt_idx].generation {
                all_ended = false;
                match generation.poll_next_unpin(cx) {
                    Poll::Pending => break,
                    Poll::Ready(None) => {
                        self.prompts[prompt_idx].generation = None;
                        return self.poll_next(cx);
                    }
                    Poll::Ready(Some(event)) => {
                        if let Some(output) = self.take(prompt_idx, event) {
                            self.first_polled = prompt_idx + 1;
                            return Poll::Ready(Some(output));
                        }
                    }
                }
            }
        }
        if all_ended { Poll::Ready(None) } else { Poll::Pending }
    }

    fn take(&mut self, prompt_idx: usize, event: ReplicaEvent) -> Option<Output> {
        match event {
            ReplicaEvent::Prompt { cached_tokens, logprobs } => {
                let prompt = &mut self.prompts[prompt_idx];
                prompt.n_cached = cached_tokens;
                let (n_tokens, n_cached) = (prompt.n_tokens as u64, u64::from(cached_tokens));
                self.charge.iter_mut().for_each(|charge| charge.prompt(n_tokens, n_cached));
                self.record.prompt(cached_tokens);
                self.model.metrics.prompt_computed(prompt.n_computed());
                let kept = KeptTokens::of(&prompt.cache_marks, prompt.n_tokens, cached_tokens);
                Some(Output::Prompt { prompt_idx, cached_tokens, kept, logprobs })
            }
            ReplicaEvent::Token { index, report } => self.take_token(prompt_idx, index, report),
            ReplicaEvent::Finished { index, reason, timing } => {
                Some(self.finish(prompt_idx, index, reason, timing))
            }
            ReplicaEvent::Failed { error } => {
                self.record.failed();
                let choices = &mut self.prompts[prompt_idx].choices;
                let n_tokens = choices.iter().filter(|c| !c.has_ended).map(|c| u64::from(c.n_tokens)).sum();
                self.charge.iter_mut().for_each(|charge| charge.answer_ended(n_tokens, n_tokens));
                choices.iter_mut().for_each(|choice| choice.has_ended = true);
                Some(Output::Failed(error))
            }
        }
    }

    fn take_token(&mut self, prompt_idx: usize, index: u32, report: TokenReport) -> Option<Output> {
        let prompt = &mut self.prompts[prompt_idx];
        let n = prompt.choices.len();
        let choice = prompt.choices.get_mut(index as usize)?;
        if choice.stopped.is_some() {
            // Was on its way when the stop string was found.
            return None;
        }
        choice.n_tokens += 1;
        self.record.token();
        if self.model.served.pooling.is_none() {
            self.charge.iter_mut().for_each(Charge::token);
        }
        let now = Instant::now();
        // All tokens of a beam come at once.
        if let Some(last) = choice.last_token_at.replace(now).filter(|_| prompt.sampling.beams.is_none()) {
            self.model.metrics.token_gap(now - last);
        }
        let text = match &mut choice.detokenizer {
            Some(detokenizer)
                if self.keeps_stop_tokens
                    || !is_stop(&prompt.sampling, report.chosen.token, choice.n_tokens) =>
            {
                let delta = detokenizer.push(report.chosen.token);
                choice.stopped = delta.stopped;
                delta.text
            }
            _ => String::new(),
        };
        if let (Some(_), Some(generation)) = (choice.stopped, &mut prompt.generation) {
            generation.stop_continuation(index);
        }
        Some(Output::Token { choice_idx: prompt_idx * n + index as usize, text, report })
    }

    fn finish(&mut self, prompt_idx: usize, index: u32, reason: FinishReason, timing: Timing) -> Output {
        let prompt = &mut self.prompts[prompt_idx];
        let (n, n_computed) = (prompt.choices.len(), prompt.n_computed());
        let choice = prompt.choices.get_mut(index as usize);
        let n_seen = choice.as_ref().map_or(0, |choice| u64::from(choice.n_tokens));
        let (mut text, mut stop) = (String::new(), None);
        if let Some(choice) = choice {
            choice.has_ended = true;
            text = choice.detokenizer.as_mut().map(Detokenizer::finish).unwrap_or_default();
            stop = choice.stopped.and_then(|idx| self.stop.get(idx).cloned());
        }
        let reason = if stop.is_some() { FinishReason::Stop { token: None } } else { reason };
        self.model.metrics.finished(reason, &timing, n_computed);
        self.record.ended(reason, &timing);
        // A vector stands in the place of a token, but is none.
        let is_text = self.model.served.pooling.is_none();
        let (n_output, n_seen) = if is_text { (u64::from(timing.n_output), n_seen) } else { (0, 0) };
        self.charge.iter_mut().for_each(|charge| charge.answer_ended(n_output, n_seen));
        if self.prompts.iter().all(PromptState::has_ended) {
            self.charge.iter_mut().for_each(|charge| charge.end(self.record.outcome()));
        }
        let prompt = &self.prompts[prompt_idx];
        if prompt.has_ended() {
            let longest = prompt.choices.iter().map(|choice| choice.n_tokens).max();
            self.model.metrics.prompt_ended(longest.unwrap_or_default());
        }
        Output::Finished {
            choice_idx: prompt_idx * n + index as usize,
            text,
            reason,
            stop,
            is_filtered: false,
            timing,
        }
    }
}

impl PromptState {
    /// Number of prompt tokens that were not in the cache.
    fn n_computed(&self) -> usize {
        self.n_tokens.saturating_sub(self.n_cached as usize)
    }

    /// Whether all choices have ended.
    fn has_ended(&self) -> bool {
        self.choices.iter().all(|choice| choice.has_ended)
    }

    /// Takes the generation for charging after the session is dropped, if its usage is not final yet.
    fn take_unfinished(&mut self) -> Option<Unfinished> {
        let live = self.choices.iter().enumerate().filter(|(_, choice)| !choice.has_ended);
        let choices: Vec<(u32, u64)> =
            live.map(|(index, choice)| (index as u32, u64::from(choice.n_tokens))).collect();
        let generation = self.generation.take().filter(|_| !choices.is_empty())?;
        let unknown_tokens = self.sampling.beams.map(|_| u64::from(self.sampling.max_tokens));
        let n_prompt_tokens = self.n_tokens as u64;
        Some(Unfinished { generation, n_prompt_tokens, choices, unknown_tokens })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let choices = self.prompts.iter().flat_map(|prompt| &prompt.choices);
        choices.filter(|choice| !choice.has_ended).for_each(|_| self.model.metrics.aborted());
        let outcome = self.record.outcome();
        self.caller.record_generation(std::mem::take(&mut self.record));
        if let Some(charge) = self.charge.take() {
            let unfinished = self.prompts.iter_mut().filter_map(PromptState::take_unfinished).collect();
            unfinished::end(unfinished, charge, outcome, self.adapter.take());
        }
    }
}

/// Whether this token ends the text without being part of it.
fn is_stop(sampling: &SamplingParams, token: TokenId, n_tokens: u32) -> bool {
    matches!(sampling.finish_at(token, n_tokens), Some(FinishReason::Stop { .. }))
}
