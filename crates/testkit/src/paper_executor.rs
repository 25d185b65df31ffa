//! An executor without a model, to prove bookkeeping: a slot of its cache holds a digest of the token and of the
//! slot before it, read through the block table, and what a row answers is a hash of every slot it can see. A
//! wrong block, a stale table, a token too many or too few: each changes tokens. [`paper_answer`] gives, without
//! any cache, what a request must get. It refuses to know how batches come about.

use throng_core::batch::{
    BLOCK_TOKENS, BlockId, RowError, ScheduledBatch, ScheduledRow, StepOutput, TokenLogprob,
};
use throng_core::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_core::request::{FinishReason, Request, SamplingParams, TokenId};

/// What stands before the first slot.
const BEFORE_FIRST: u64 = 0x5bd1_e995_9d1b_58c7;

/// An executor that computes digests.
#[derive(Debug)]
pub struct PaperExecutor {
    capacity: ExecutorCapacity,
    slots: Vec<u64>,
}

impl PaperExecutor {
    /// An executor of this capacity, with a cache full of rubbish.
    pub fn new(capacity: ExecutorCapacity) -> Self {
        let n_slots = capacity.n_blocks as u64 * BLOCK_TOKENS as u64;
        Self { capacity, slots: (0..n_slots).map(|slot| mix(slot, 0xdead)).collect() }
    }

    fn slot(blocks: &[BlockId], position: usize) -> usize {
        blocks[position / BLOCK_TOKENS].0 as usize * BLOCK_TOKENS + position % BLOCK_TOKENS
    }

    fn run_row(&mut self, batch: &ScheduledBatch, row: &ScheduledRow, output: &mut StepOutput) {
        let (tokens, blocks, start) = (batch.tokens(row), batch.blocks(row), row.start as usize);
        let mut seen = Seen::default();
        for position in 0..start {
            seen.read(self.slots[Self::slot(blocks, position)]);
        }
        let (vocabulary_size, sampling) = (self.capacity.vocabulary_size, &*row.sampling);
        for (i, &token) in tokens.iter().enumerate() {
            let position = start + i;
            let before = match position {
                0 => BEFORE_FIRST,
                _ => self.slots[Self::slot(blocks, position - 1)],
            };
            let slot = digest(before, token);
            self.slots[Self::slot(blocks, position)] = slot;
            seen.read(slot);
            let next = tokens.get(i + 1).copied().or(row.next_prompt_token);
            if let (Some(n_top), Some(next)) = (sampling.prompt_logprobs, next)
                && position + 1 < row.n_prompt as usize
            {
                let token = seen.report(next, Some(n_top), vocabulary_size);
                output.push_prompt(token.chosen, &token.top);
            }
        }
        if row.sample {
            let place = Place { index: row.sequence.index, n_prompt: row.n_prompt as usize };
            let position = start + tokens.len();
            match seen.choose(sampling, place, position, batch.history(row), vocabulary_size) {
                Ok(token) => output.push_sampled(token.chosen, &token.top),
                Err(error) => output.fail_row(error),
            }
        }
    }
}

impl Executor for PaperExecutor {
    fn capacity(&self) -> ExecutorCapacity {
        self.capacity
    }

    fn execute(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        output.clear();
        for row in batch.rows() {
            output.begin_row();
            self.run_row(batch, row, output);
        }
        Ok(())
    }
}

/// A token and what is reported beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct PaperToken {
    /// The token.
    pub chosen: TokenLogprob,
    /// As many made-up alternatives as were asked for.
    pub top: Vec<TokenLogprob>,
}

/// What a request must get, however it is scheduled.
#[derive(Debug, Clone, PartialEq)]
pub struct PaperAnswer {
    /// The prompt's tokens but the first, when their log-probabilities are asked for.
    pub prompt: Vec<PaperToken>,
    /// Each continuation's tokens and its end.
    pub sequences: Vec<(Vec<PaperToken>, FinishReason)>,
}

/// What `request` must get of a [`PaperExecutor`] with this vocabulary and context, computed without any cache.
///
/// # Panics
/// When a rule of the request leaves no token to choose.
pub fn paper_answer(request: &Request, capacity: &ExecutorCapacity) -> PaperAnswer {
    let (vocabulary_size, sampling) = (capacity.vocabulary_size, &*request.sampling);
    let n_blocks_tokens = capacity.n_blocks as usize * BLOCK_TOKENS;
    let limit = n_blocks_tokens.min(capacity.max_sequence_tokens as usize);
    let mut answer = PaperAnswer { prompt: Vec::new(), sequences: Vec::new() };
    let (mut slot, mut of_prompt) = (BEFORE_FIRST, Seen::default());
    for (i, &token) in request.prompt.iter().enumerate() {
        slot = digest(slot, token);
        of_prompt.read(slot);
        if let (Some(n_top), Some(&next)) = (sampling.prompt_logprobs, request.prompt.get(i + 1)) {
            answer.prompt.push(of_prompt.report(next, Some(n_top), vocabulary_size));
        }
    }
    for index in 0..request.n {
        let place = Place { index, n_prompt: request.prompt.len() };
        let (mut slot, mut seen) = (slot, of_prompt);
        let (mut history, mut chosen) = (request.prompt.to_vec(), Vec::new());
        let reason = loop {
            if sampling.max_tokens == 0 {
                break FinishReason::Length;
            }
            let token = seen
                .choose(sampling, place, history.len(), &history, vocabulary_size)
                .expect("a token is left to choose");
            let id = token.chosen.token;
            chosen.push(token);
            history.push(id);
            if let Some(reason) = sampling.finish_at(id, chosen.len() as u32) {
                break reason;
            }
            if history.len() >= limit {
                break FinishReason::Length;
            }
            slot = digest(slot, id);
            seen.read(slot);
        };
        answer.sequences.push((chosen, reason));
    }
    answer
}

/// Which continuation of how long a prompt.
#[derive(Debug, Clone, Copy)]
struct Place {
    index: u32,
    n_prompt: usize,
}

/// Every slot that was read, in order.
#[derive(Debug, Clone, Copy)]
struct Seen(u64);

impl Default for Seen {
    fn default() -> Self {
        Self(0x2545_f491_4f6c_dd1d)
    }
}

impl Seen {
    fn read(&mut self, slot: u64) {
        self.0 = mix(self.0, slot);
    }

    /// `token` with numbers that follow from what was read.
    fn report(&self, token: TokenId, n_top: Option<u32>, vocabulary_size: u32) -> PaperToken {
        let Some(n_top) = n_top else {
            return PaperToken { chosen: TokenLogprob { token, logprob: 0.0, rank: 0 }, top: Vec::new() };
        };
        let bits = mix(self.0, u64::from(token));
        let logprob = -((bits >> 48) as f32) / 4096.0;
        let chosen = TokenLogprob { token, logprob, rank: 1 + (bits % u64::from(vocabulary_size)) as u32 };
        let top = (0..n_top.min(vocabulary_size)).map(|i| TokenLogprob {
            token: ((self.0 % u64::from(vocabulary_size)) as u32 + i) % vocabulary_size,
            logprob: -(i as f32) - (self.0 >> 40) as f32 / 16_777_216.0,
            rank: i + 1,
        });
        PaperToken { chosen, top: top.collect() }
    }

    /// The token at `position`, under those rules that decide what may be chosen at all.
    fn choose(
        &self,
        sampling: &SamplingParams,
        place: Place,
        position: usize,
        history: &[TokenId],
        vocabulary_size: u32,
    ) -> Result<PaperToken, RowError> {
        let mut key = self.0;
        if !sampling.is_greedy() {
            key = [sampling.seed, u64::from(place.index), position as u64].into_iter().fold(key, mix);
        }
        if sampling.reads_history() {
            key = history.iter().fold(key, |key, &token| mix(key, u64::from(token)));
        }
        let allowed = sampling.allowed_token_ids.as_deref();
        let n_candidates = allowed.map_or(u64::from(vocabulary_size), |allowed| allowed.len() as u64);
        let too_early = position.saturating_sub(place.n_prompt) < sampling.min_tokens as usize;
        let is_banned = |token| {
            let ends = sampling.eos_token_ids.contains(&token) || sampling.stop_token_ids.contains(&token);
            let completes = |word: &Vec<TokenId>| {
                word.split_last().is_some_and(|(last, rest)| *last == token && history.ends_with(rest))
            };
            (too_early && ends) || sampling.bad_words.iter().any(completes)
        };
        let candidates = (0..n_candidates).map(|i| {
            let i = (key % n_candidates + i) % n_candidates;
            allowed.map_or(i as TokenId, |allowed| allowed[i as usize])
        });
        let token = candidates.into_iter().find(|&token| !is_banned(token));
        let token = token.ok_or(RowError::InvalidLogits)?;
        Ok(self.report(token, sampling.logprobs, vocabulary_size))
    }
}

fn digest(before: u64, token: TokenId) -> u64 {
    mix(before, 1 + u64::from(token))
}

/// Two words into one, in this order; the finisher is that of splitmix64.
fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.rotate_left(23) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
