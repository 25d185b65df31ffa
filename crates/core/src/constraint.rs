//! Token constraints: the tokens that may come next, given the output so far (grammars, JSON schemas,
//! choices). Does not know the meaning of tokens, when masks are evaluated, or on which thread.

use std::fmt::Debug;

use crate::token::TokenId;

/// Restricts the tokens of an output. A pure function of the output so far: equal outputs give equal masks,
/// on any thread and after any earlier calls, so that the tokens of a request do not depend on the schedule.
/// Implementations may cache data derived from an output (a parser's state), within a bound.
///
/// An executor calls it with outputs of which each token was allowed by the mask before it. It may ask for
/// outputs that are only drafted, for the same output more than once, for a shorter output after a longer one
/// (a draft was rejected), and for several continuations (`n > 1`) in any order. It does not ask again after
/// a token that ended the output; with `ignore_eos`, an end token may occur inside an output.
///
/// A sequence whose mask is not evaluated in time is left out of the step, and a mask that takes too long
/// ends its request: see [`masks`](crate::scheduling::masks).
pub trait TokenConstraint: Send + Sync + Debug {
    /// Marks in `mask` the tokens that may follow `output`, which is the output without the prompt. `mask` is
    /// empty when the call begins. End tokens are no special case: the mask allows them wherever the output
    /// may end.
    ///
    /// # Errors
    /// When the mask cannot be computed; the request then fails, and no other.
    fn mask(&self, output: &[TokenId], mask: &mut TokenMask) -> Result<(), ConstraintError>;

    /// Appends to `forced` the tokens that must follow `output` one after the other, as far as the constraint
    /// alone determines them; none by default. They are proposed as drafts, so that a wrong one costs time
    /// and does not change the output. `forced` is empty when the call begins; the caller uses a bounded
    /// number of them.
    fn forced(&self, output: &[TokenId], forced: &mut Vec<TokenId>) {
        let _ = (output, forced);
    }

    /// Identity of the constraint over its vocabulary: two constraints with equal identities give equal
    /// masks for every output. `None` if it is not known; outputs are then not shared between requests.
    fn identity(&self) -> Option<ConstraintIdentity> {
        None
    }
}

/// A digest of the tokens that a constraint allows, made with a cryptographic hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConstraintIdentity(pub [u8; 32]);

/// Reason why a constraint gave no mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// The constraint does not allow the output so far.
    #[error("the output does not satisfy the constraint")]
    OutputRejected,
    /// A limit on time, memory or states of the constraint was exceeded.
    #[error("the constraint is too complex")]
    LimitExceeded,
    /// A fault inside the constraint, a panic included.
    #[error("evaluating the constraint failed")]
    Failed,
}

/// A set of token ids: one bit for each token of a vocabulary, token `t` at bit `t % 32` of word `t / 32`.
/// Bits beyond the vocabulary are 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
    vocabulary_size: u32,
}

impl TokenMask {
    /// The empty set over the token ids below `vocabulary_size`.
    pub fn new(vocabulary_size: u32) -> Self {
        let mut mask = Self::default();
        mask.reset(vocabulary_size);
        mask
    }

    /// Empties the set, now over the token ids below `vocabulary_size`, and keeps its buffer.
    pub fn reset(&mut self, vocabulary_size: u32) {
        self.words.clear();
        self.words.resize(vocabulary_size.div_ceil(32) as usize, 0);
        self.vocabulary_size = vocabulary_size;
    }

    /// Size of the vocabulary; token ids are below it.
    pub fn vocabulary_size(&self) -> u32 {
        self.vocabulary_size
    }

    /// Adds a token; one outside the vocabulary is ignored.
    pub fn allow(&mut self, token: TokenId) {
        if token < self.vocabulary_size {
            self.words[token as usize / 32] |= 1 << (token % 32);
        }
    }

    /// Removes a token; one outside the vocabulary is ignored.
    pub fn ban(&mut self, token: TokenId) {
        if token < self.vocabulary_size {
            self.words[token as usize / 32] &= !(1 << (token % 32));
        }
    }

    /// Makes the set equal to `words`, in the layout of [`TokenMask`]. Words and bits beyond the vocabulary
    /// are ignored, and where `words` is too short the tokens beyond it are not allowed.
    pub fn set_words(&mut self, words: &[u32]) {
        let n = words.len().min(self.words.len());
        self.words[..n].copy_from_slice(&words[..n]);
        self.words[n..].fill(0);
        let n_last = self.vocabulary_size % 32;
        if let Some(last) = self.words.last_mut().filter(|_| n_last > 0) {
            *last &= (1 << n_last) - 1;
        }
    }

    /// Adds all tokens of the vocabulary.
    pub fn allow_all(&mut self) {
        self.words.fill(u32::MAX);
        let n_last = self.vocabulary_size % 32;
        if let Some(last) = self.words.last_mut().filter(|_| n_last > 0) {
            *last = (1 << n_last) - 1;
        }
    }

    /// Whether a token is in the set.
    pub fn contains(&self, token: TokenId) -> bool {
        self.words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// The bits, 32 tokens a word.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Number of tokens in the set.
    pub fn n_allowed(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no token is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// The tokens of the set, increasing.
    pub fn tokens(&self) -> impl Iterator<Item = TokenId> + '_ {
        (0..).step_by(32).zip(&self.words).flat_map(|(first, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(first + bit)
            })
        })
    }
}
