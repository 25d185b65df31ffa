//! The parameters that change single logits before a token is chosen. They affect few of a vocabulary's
//! logits, so they change them in place and restore them. Semantics are vLLM's. Does not know probabilities.

use throng_core::constraint::TokenMask;
use throng_core::request::TokenId;

use super::SamplingInput;

/// The original logits where a rule changed them, and the counts that rules use.
#[derive(Debug, Default)]
pub(super) struct LogitRules {
    changed: Vec<(TokenId, f32)>,
    /// A token of the prompt or output has `SEEN` here, plus its count in the output.
    counts: Vec<u32>,
    seen: Vec<TokenId>,
}

const SEEN: u32 = 1 << 31;

impl LogitRules {
    /// Applies `mask`, `bad_words`, `min_tokens`, `logit_bias` and the penalties to `logits`.
    pub(super) fn apply(&mut self, logits: &mut [f32], input: &SamplingInput<'_>, mask: Option<&TokenMask>) {
        self.changed.clear();
        if let Some(mask) = mask {
            self.ban_all_but(logits, mask);
        }
        self.ban_bad_words(logits, input);
        self.ban_early_ends(logits, input, mask);
        for &(token, bias) in &input.params.logit_bias {
            self.change(logits, token, |logit| logit + bias);
        }
        self.penalize(logits, input);
    }

    /// The tokens whose logits [`Self::apply`] changed, some more than once.
    pub(super) fn changed_tokens(&self) -> impl Iterator<Item = TokenId> {
        self.changed.iter().map(|(token, _)| *token)
    }

    /// Undoes the changes of [`Self::apply`].
    pub(super) fn undo(&mut self, logits: &mut [f32]) {
        // In reverse order, so that a token that was changed twice ends with its original logit.
        for &(token, logit) in self.changed.iter().rev() {
            logits[token as usize] = logit;
        }
    }

    fn change(&mut self, logits: &mut [f32], token: TokenId, change: impl FnOnce(f32) -> f32) {
        if let Some(logit) = logits.get_mut(token as usize) {
            self.changed.push((token, *logit));
            *logit = change(*logit);
        }
    }

    fn ban(&mut self, logits: &mut [f32], token: TokenId) {
        self.change(logits, token, |_| f32::NEG_INFINITY);
    }

    fn ban_all_but(&mut self, logits: &mut [f32], mask: &TokenMask) {
        let n_words = logits.len().div_ceil(32);
        let words = mask.words().iter().copied().chain(std::iter::repeat(0)).take(n_words);
        for (first, word) in (0..).step_by(32).zip(words) {
            let mut banned = !word;
            while banned != 0 {
                self.ban(logits, first + banned.trailing_zeros());
                banned &= banned - 1;
            }
        }
    }

    /// A bad word's last token is banned where the output ends with the others; the prompt does not count.
    fn ban_bad_words(&mut self, logits: &mut [f32], input: &SamplingInput<'_>) {
        for word in &input.params.bad_words {
            if let Some((&last, before)) = word.split_last()
                && input.output().ends_with(before)
            {
                self.ban(logits, last);
            }
        }
    }

    /// Bans end tokens before `min_tokens`, unless a mask allows nothing else: a complete grammar cannot be
    /// continued.
    fn ban_early_ends(&mut self, logits: &mut [f32], input: &SamplingInput<'_>, mask: Option<&TokenMask>) {
        let params = input.params;
        let ends = || params.eos_token_ids.iter().chain(&params.stop_token_ids);
        let must_end = mask.is_some_and(|mask| mask.tokens().all(|token| ends().any(|end| *end == token)));
        if input.n_output() < params.min_tokens && !must_end {
            for &token in ends() {
                self.ban(logits, token);
            }
        }
    }

    fn penalize(&mut self, logits: &mut [f32], input: &SamplingInput<'_>) {
        let params = input.params;
        let (repetition, presence, frequency) =
            (params.repetition_penalty, params.presence_penalty, params.frequency_penalty);
        if repetition == 1.0 && presence == 0.0 && frequency == 0.0 {
            return;
        }
        self.count(logits.len(), input);
        for seen_idx in 0..self.seen.len() {
            let token = self.seen[seen_idx];
            let n_in_output = self.counts[token as usize] & !SEEN;
            self.change(logits, token, |logit| {
                if logit == f32::NEG_INFINITY {
                    return logit;
                }
                let repeated = if logit > 0.0 { logit / repetition } else { logit * repetition };
                // A factor far from 1 must not make a logit infinite: such a token would be chosen for sure or never.
                let repeated = repeated.clamp(f32::MIN, f32::MAX);
                match n_in_output {
                    0 => repeated,
                    n => repeated - frequency * n as f32 - presence,
                }
            });
        }
    }

    fn count(&mut self, vocabulary_size: usize, input: &SamplingInput<'_>) {
        // Emptied here and not after use, so that a panic in between leaves nothing behind.
        for token in self.seen.drain(..) {
            self.counts[token as usize] = 0;
        }
        self.counts.resize(vocabulary_size, 0);
        let n_prompt = input.n_prompt as usize;
        for (idx, &token) in input.history.iter().enumerate() {
            let Some(count) = self.counts.get_mut(token as usize) else { continue };
            if *count == 0 {
                *count = SEEN;
                self.seen.push(token);
            }
            *count += u32::from(idx >= n_prompt);
        }
    }
}
