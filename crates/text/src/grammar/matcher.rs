//! Computes the tokens that may come next, as a pure function of the output so far. Keeps parsers where
//! outputs are likely to continue. Does not know sampling.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::TokenParser;
use llguidance::api::StopReason;

use super::error::summary;
use super::{CompiledGrammar, GrammarError};

/// Maximum number of tokens that a kept parser is rolled back; an output that differs earlier gets another
/// parser.
const MAX_ROLLBACK: usize = 16;
/// Maximum number of forced tokens that one call returns.
const MAX_FORCED: usize = 64;

/// Evaluates a compiled grammar for the outputs of one request. Results depend only on the grammar and the
/// given output: earlier calls affect only the amount of work. Can be used by several threads.
pub struct GrammarMatcher {
    grammar: Arc<CompiledGrammar>,
    /// Kept parsers, the most recently used last.
    kept: Mutex<Vec<Kept>>,
    max_kept: usize,
}

/// A parser and the tokens it has consumed.
struct Kept {
    parser: TokenParser,
    consumed: Vec<u32>,
}

impl GrammarMatcher {
    /// Creates a matcher for a request of `n_outputs` continuations, which is also the number of parsers
    /// kept between calls.
    pub fn new(grammar: Arc<CompiledGrammar>, n_outputs: usize) -> Self {
        Self { grammar, kept: Mutex::new(Vec::new()), max_kept: n_outputs.max(1) }
    }

    /// The compiled grammar.
    pub fn grammar(&self) -> &Arc<CompiledGrammar> {
        &self.grammar
    }

    /// Writes the tokens that may follow `output`: token `t` is allowed if bit `t % 32` of word `t / 32` is
    /// set. `allowed` has a bit for each token of the vocabulary or more; further bits become 0. If the
    /// output is complete, end tokens are allowed; if no token may be added, or it already has an end token,
    /// only these. At least one token is allowed.
    ///
    /// # Errors
    /// [`GrammarError::Mismatch`] for an output that does not match the grammar,
    /// [`GrammarError::TooComplex`] if the mask would take too much work.
    pub fn mask(&self, output: &[u32], allowed: &mut [u32]) -> Result<(), GrammarError> {
        allowed.fill(0);
        self.at(output, |place| match place {
            None => {
                self.allow_ends(allowed);
                Ok(())
            }
            Some(kept) => self.mask_of(kept, allowed),
        })
    }

    /// Appends the tokens that must follow `output` to `forced`, at most 64: those that are the only ones
    /// allowed by [`Self::mask`], called after each. They are the tokenizer's encoding of the text that the
    /// grammar prescribes here; if a longer token could also start with that text, nothing is forced.
    ///
    /// # Errors
    /// Errors of [`Self::mask`].
    pub fn forced(&self, output: &[u32], forced: &mut Vec<u32>) -> Result<(), GrammarError> {
        let n_before = forced.len();
        self.at(output, |place| {
            forced.truncate(n_before);
            let Some(kept) = place else { return Ok(()) };
            while forced.len() - n_before < MAX_FORCED && kept.parser.stop_reason() == StopReason::NotStopped
            {
                // Each token is computed anew, as by the mask: after a few tokens, the rest may be
                // tokenized differently.
                let Some(&token) = kept.parser.compute_ff_tokens().first() else { break };
                kept.consume(&[token])?;
                forced.push(token);
            }
            Ok(())
        })
    }

    /// Whether the output may end here.
    ///
    /// # Errors
    /// Errors of [`Self::mask`].
    pub fn is_complete(&self, output: &[u32]) -> Result<bool, GrammarError> {
        self.at(output, |place| Ok(place.is_none_or(|kept| kept.parser.is_accepting())))
    }

    /// Calls `use_parser` with a parser that has consumed `output`, or `None` for an output that has ended.
    /// On failure, calls it once more with a parser that shares no automaton with other outputs, so that
    /// their effects (a full automaton) do not matter.
    fn at<T>(
        &self,
        output: &[u32],
        mut use_parser: impl FnMut(Option<&mut Kept>) -> Result<T, GrammarError>,
    ) -> Result<T, GrammarError> {
        let end = output.iter().position(|token| self.grammar.end_tokens().contains(token));
        if end.is_some() {
            return use_parser(None);
        }
        for alone in [false, true] {
            let outcome = guarded(|| {
                let mut kept =
                    if alone { Kept::new(self.grammar.begin_alone()) } else { self.nearest(output) };
                kept.go_to(output)?;
                let answer = use_parser(Some(&mut kept))?;
                Ok((answer, kept))
            });
            match outcome {
                Ok((answer, kept)) => {
                    self.keep(kept);
                    return Ok(answer);
                }
                Err(error) if alone => return Err(error),
                Err(_) => {}
            }
        }
        Err(GrammarError::Internal("no parser".to_owned()))
    }

    /// The kept parser that reaches `output` with the least work, or a new one.
    fn nearest(&self, output: &[u32]) -> Kept {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let common = |kept: &Kept| kept.n_common(output);
        let usable = |kept: &Kept| kept.consumed.len() - common(kept) <= MAX_ROLLBACK;
        let best = (0..kept.len()).filter(|idx| usable(&kept[*idx])).max_by_key(|idx| common(&kept[*idx]));
        match best {
            Some(idx) => kept.remove(idx),
            None => Kept::new(self.grammar.begin()),
        }
    }

    fn keep(&self, parser: Kept) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= self.max_kept {
            kept.remove(0);
        }
        kept.push(parser);
    }

    fn mask_of(&self, kept: &mut Kept, allowed: &mut [u32]) -> Result<(), GrammarError> {
        if kept.parser.stop_reason() != StopReason::NotStopped {
            if !kept.parser.stop_reason().is_ok() {
                return Err(kept.failure());
            }
            self.allow_ends(allowed);
            return Ok(());
        }
        let mask = kept.parser.compute_mask().map_err(|_| kept.failure())?;
        let n_words = self.grammar.n_tokens().div_ceil(32);
        for (word, bits) in allowed.iter_mut().zip(&mask.as_slice()[..n_words]) {
            *word = *bits;
        }
        if let (n_bits @ 1.., Some(last)) = (self.grammar.n_tokens() % 32, allowed.get_mut(n_words - 1)) {
            *last &= (1 << n_bits) - 1;
        }
        Ok(())
    }

    fn allow_ends(&self, allowed: &mut [u32]) {
        for &token in self.grammar.end_tokens() {
            if let Some(word) = allowed.get_mut(token as usize / 32) {
                *word |= 1 << (token % 32);
            }
        }
    }
}

impl Kept {
    fn new(parser: TokenParser) -> Self {
        Self { parser, consumed: Vec::new() }
    }

    fn n_common(&self, output: &[u32]) -> usize {
        self.consumed.iter().zip(output).take_while(|(a, b)| a == b).count()
    }

    /// Rolls back and consumes until exactly `output` is consumed.
    fn go_to(&mut self, output: &[u32]) -> Result<(), GrammarError> {
        let n_common = self.n_common(output);
        let n_back = self.consumed.len() - n_common;
        if n_back > 0 {
            self.parser.rollback(n_back).map_err(|_| self.failure())?;
            self.consumed.truncate(n_common);
        }
        self.consume(&output[n_common..])
    }

    fn consume(&mut self, tokens: &[u32]) -> Result<(), GrammarError> {
        for &token in tokens {
            let n_back = self.parser.consume_token(token).map_err(|_| self.failure())?;
            if n_back != 0 {
                return Err(GrammarError::Internal("a token would have to be taken back".to_owned()));
            }
            self.consumed.push(token);
        }
        if !tokens.is_empty() {
            self.parser.check_stop().map_err(|_| self.failure())?;
        }
        Ok(())
    }

    fn failure(&self) -> GrammarError {
        let message = self.parser.error_message().unwrap_or_default();
        let text = summary(&message);
        match self.parser.stop_reason() {
            StopReason::LexerTooComplex => GrammarError::TooComplex(text),
            StopReason::ParserTooComplex if !message.contains("token ") && !message.contains("byte ") => {
                GrammarError::TooComplex(text)
            }
            _ => GrammarError::Mismatch(text),
        }
    }
}

/// Converts a panic in the grammar library into an error of one output.
fn guarded<T>(work: impl FnOnce() -> Result<T, GrammarError>) -> Result<T, GrammarError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(GrammarError::Internal("it stopped unexpectedly".to_owned())))
}

impl std::fmt::Debug for GrammarMatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarMatcher").field("grammar", &self.grammar).finish_non_exhaustive()
    }
}
