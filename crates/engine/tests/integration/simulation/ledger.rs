//! What each request should get and has got so far: the judge of every effect that concerns a request, and of
//! every batch.

use std::collections::{BTreeMap, BTreeSet};

use throng_core::fleet::replica::TokenReport;
use throng_core::request::{FinishReason, Request, RequestId, SequenceId};
use throng_core::scheduling::batch::ScheduledBatch;
use throng_core::scheduling::executor::ExecutorCapacity;
use throng_core::time::Timestamp;
use throng_engine::{EngineFailure, StreamEvent};
use throng_testkit::paper_executor::{PaperAnswer, PaperToken, paper_answer};

/// All requests that were taken in and have not ended.
#[derive(Default)]
pub struct Ledger {
    open: BTreeMap<RequestId, Account>,
    /// The requests whose sequences the executor said have failed in the step that ends.
    pub failed_sequences: BTreeSet<RequestId>,
    pub n_finished: usize,
    pub n_aborted: usize,
    pub n_failed_sequences: usize,
    /// Shares of beams in steps.
    pub n_beams: usize,
}

struct Account {
    answer: PaperAnswer,
    /// Its sequences are beams: which of them become its continuations is known only at its end.
    searches_beams: bool,
    prompt_done: bool,
    /// How often its reader fell behind less how often it caught up.
    n_behind: u32,
    /// Since when it is paused.
    paused_since: Option<Timestamp>,
    sequences: Vec<SequenceAccount>,
}

#[derive(Default)]
struct SequenceAccount {
    n_tokens: usize,
    ended: bool,
    cancelled: bool,
}

impl Ledger {
    pub fn open(&mut self, request: &Request, capacity: &ExecutorCapacity) {
        let account = Account {
            answer: paper_answer(request, capacity),
            searches_beams: request.beam_search().is_some(),
            prompt_done: false,
            n_behind: 0,
            paused_since: None,
            sequences: (0..request.n).map(|_| SequenceAccount::default()).collect(),
        };
        self.open.insert(request.id, account);
    }

    pub fn n_open(&self) -> usize {
        self.open.len()
    }

    pub fn is_open(&self, request: RequestId) -> bool {
        self.open.contains_key(&request)
    }

    /// Some request that is open.
    pub fn some_open(&self, rng: &mut fastrand::Rng) -> Option<RequestId> {
        rng.choice(self.open.keys()).copied()
    }

    pub fn cancel(&mut self, request: RequestId, index: Option<u32>) {
        let Some(account) = self.open.get_mut(&request) else { return };
        if account.searches_beams && index.is_some() {
            return;
        }
        for (i, sequence) in account.sequences.iter_mut().enumerate() {
            sequence.cancelled |= index.is_none_or(|index| index as usize == i);
        }
    }

    pub fn fall_behind(&mut self, request: RequestId, now: Timestamp) {
        if let Some(account) = self.open.get_mut(&request) {
            account.n_behind += 1;
            account.paused_since.get_or_insert(now);
        }
    }

    /// Whether the request goes on.
    pub fn catch_up(&mut self, request: RequestId) -> bool {
        let Some(account) = self.open.get_mut(&request) else { return false };
        account.n_behind -= 1;
        account.n_behind == 0 && account.paused_since.take().is_some()
    }

    /// Requests that are paused, and since when the one that is it longest.
    pub fn paused(&self) -> (usize, Option<Timestamp>) {
        let since = || self.open.values().filter_map(|account| account.paused_since);
        (since().count(), since().min())
    }

    /// Since when a request is paused.
    pub fn paused_since(&self, request: RequestId) -> Option<Timestamp> {
        self.open.get(&request)?.paused_since
    }

    /// Whether a request is open that could have a share in a step.
    pub fn has_work(&self) -> bool {
        self.open.values().any(|account| account.n_behind == 0)
    }

    /// Judges a batch.
    pub fn check_batch(&mut self, batch: &ScheduledBatch) -> Result<(), String> {
        for scheduled in batch.sequences() {
            let id = scheduled.id;
            let account = self.open.get(&id.request).ok_or(format!("{id} is in a batch but not open"))?;
            let sequence = &account.sequences[account.place_of(id.index)];
            self.n_beams += usize::from(account.searches_beams);
            if sequence.ended || sequence.cancelled {
                return Err(format!("{id} is in a batch but has ended or was cancelled"));
            }
            if account.n_behind > 0 {
                return Err(format!("{id} is in a batch but its reader is behind"));
            }
        }
        Ok(())
    }

    /// Judges that a step which failed as a whole ended the requests that had a share in it, but for those
    /// that `were_paused` meanwhile.
    pub fn check_failed_step(
        &self,
        batch: &ScheduledBatch,
        were_paused: &BTreeSet<RequestId>,
    ) -> Result<(), String> {
        let mut sequences = batch.sequences().iter();
        let survivor = sequences.find(|scheduled| {
            !were_paused.contains(&scheduled.id.request) && {
                let account = self.open.get(&scheduled.id.request);
                account.is_some_and(|account| !account.sequences[account.place_of(scheduled.id.index)].ended)
            }
        });
        match survivor {
            Some(scheduled) => Err(format!("{} outlived the step that failed", scheduled.id)),
            None => Ok(()),
        }
    }

    /// Judges an event.
    pub fn note(&mut self, request: RequestId, event: &StreamEvent) -> Result<(), String> {
        let account = self.open.get_mut(&request).ok_or("its stream is not open")?;
        match event {
            StreamEvent::Prompt { logprobs, .. } => {
                if std::mem::replace(&mut account.prompt_done, true) {
                    return Err("twice".into());
                }
                let equal = logprobs.len() == account.answer.prompt.len()
                    && logprobs.iter().zip(&account.answer.prompt).all(|(got, token)| is_report(got, token));
                if equal { Ok(()) } else { Err("its prompt has other log-probabilities".into()) }
            }
            StreamEvent::Token { index, report } => account.note_token(*index, report),
            StreamEvent::Finished { index, reason, timing } => {
                self.n_aborted += usize::from(*reason == FinishReason::Abort);
                account.note_end(SequenceId { request, index: *index }, *reason)?;
                let n_tokens = account.sequences[*index as usize].n_tokens;
                // Beams have their tokens of one another.
                if account.searches_beams || timing.n_output as usize == n_tokens {
                    Ok(())
                } else {
                    Err("its timing counts other tokens".into())
                }
            }
            StreamEvent::Failed { .. } => Err("the core never delivers this".into()),
        }
    }

    /// Judges the end of a stream. A failure but that of a sequence is the world's to judge.
    pub fn close(&mut self, request: RequestId, failure: Option<&EngineFailure>) -> Result<(), String> {
        let account = self.open.remove(&request).ok_or("its stream is not open")?;
        match failure {
            None if account.sequences.iter().all(|sequence| sequence.ended) => {
                self.n_finished += 1;
                Ok(())
            }
            None => Err("not all of its continuations have ended".into()),
            Some(EngineFailure::SequenceFailed(_)) if !self.failed_sequences.contains(&request) => {
                Err("none of its sequences failed".into())
            }
            Some(EngineFailure::SequenceFailed(_)) => {
                self.n_failed_sequences += 1;
                Ok(())
            }
            Some(_) => Ok(()),
        }
    }
}

impl Account {
    /// Where the state of a sequence stands: beams end together, as the first continuation does.
    fn place_of(&self, index: u32) -> usize {
        if self.searches_beams { 0 } else { index as usize }
    }

    fn note_token(&mut self, index: u32, report: &TokenReport) -> Result<(), String> {
        let sequence = &mut self.sequences[index as usize];
        if sequence.ended || sequence.cancelled || !self.prompt_done {
            return Err("a token too early or too late".into());
        }
        let expected = self.answer.sequences[index as usize].0.get(sequence.n_tokens);
        sequence.n_tokens += 1;
        match expected {
            Some(token) if is_report(report, token) => Ok(()),
            _ => Err(format!("{report:?} where {expected:?} is right")),
        }
    }

    fn note_end(&mut self, id: SequenceId, reason: FinishReason) -> Result<(), String> {
        let sequence = &mut self.sequences[id.index as usize];
        let (tokens, expected) = &self.answer.sequences[id.index as usize];
        if std::mem::replace(&mut sequence.ended, true) {
            return Err(format!("{id} ended twice"));
        }
        match reason {
            FinishReason::Abort if sequence.cancelled => Ok(()),
            _ if reason == *expected && sequence.n_tokens == tokens.len() => Ok(()),
            _ => Err(format!("{id} ended with {reason:?}, not {expected:?} after {} tokens", tokens.len())),
        }
    }
}

fn is_report(got: &TokenReport, token: &PaperToken) -> bool {
    got.chosen == token.chosen && got.top == token.top
}
