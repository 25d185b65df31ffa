//! A tokenizer in the grammar library's form: the bytes of every token in a trie, end tokens, control
//! tokens. Does not know grammars.

use std::sync::Arc;

use toktrie::{TokRxInfo, TokTrie, TokenizerEnv};

use super::GrammarError;
use crate::tokenizer::{EncodeOptions, Tokenizer};

/// Maximum bytes of a token in the trie, whose depth is limited. Longer tokens are never generated under a
/// grammar.
const MAX_TOKEN_BYTES: usize = 1000;

/// Maximum bytes of a prescribed text that are tokenized: only the first token is used, and the rest would
/// be tokenized again for each token.
const MAX_TOKENIZED_BYTES: usize = 4096;

/// Prefix for a text that continues another one: no tokenizer merges it with the following text.
const START: &str = "\u{2}";

/// Texts whose tokens must spell them exactly for tokenization to count as faithful.
const SAMPLES: &[&str] =
    &["{\"name\": \"x\", \"n\": [1, -2.5e3]}", "a b  c\n\td", " lead", "é語😀", "</tag>"];

/// A vocabulary for the grammar library.
pub(super) struct Vocabulary {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
    /// Tokens that spell [`START`] at the beginning of a text.
    start: Vec<u32>,
    /// Whether tokenizing a text preserves it byte for byte.
    is_faithful: bool,
}

impl Vocabulary {
    /// Builds the trie: about 50 ms for 64,000 tokens.
    ///
    /// # Errors
    /// [`GrammarError::NoEndToken`]; [`GrammarError::Unsupported`] for a vocabulary that does not fit the
    /// trie.
    pub(super) fn new(tokenizer: Arc<Tokenizer>, end_tokens: &[u32]) -> Result<Self, GrammarError> {
        let n_tokens = tokenizer.vocabulary_size();
        let ends: Vec<u32> = end_tokens.iter().copied().filter(|id| (*id as usize) < n_tokens).collect();
        let Some(&first_end) = ends.first() else { return Err(GrammarError::NoEndToken) };
        let words: Vec<Vec<u8>> =
            (0..n_tokens as u32).map(|id| trie_bytes(&tokenizer, id, ends.contains(&id))).collect();
        let info = TokRxInfo::new(n_tokens as u32, first_end);
        // The trie asserts its limits, and a vocabulary comes from a file.
        let trie = std::panic::catch_unwind(|| TokTrie::from(&info, &words).with_eos_tokens(&ends));
        let trie = trie.map_err(|_| {
            GrammarError::Unsupported("the vocabulary is too large for constrained outputs".to_owned())
        })?;
        let mut vocabulary = Self { tokenizer, trie, start: Vec::new(), is_faithful: false };
        vocabulary.start = vocabulary.encode(START).unwrap_or_default();
        vocabulary.is_faithful = SAMPLES.iter().all(|text| vocabulary.tokens_of(text).is_some());
        Ok(vocabulary)
    }

    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        let options = EncodeOptions { add_special_tokens: false, parse_special: false };
        self.tokenizer.encode(text, options).ok()
    }

    /// The tokens of a text that continues another one; `None` if they would not spell exactly that text.
    fn tokens_of(&self, text: &str) -> Option<Vec<u32>> {
        // A tokenizer may treat the start of a text differently, so the text is preceded by another one.
        let tokens = self.encode(&format!("{START}{text}"))?;
        let tokens = tokens.strip_prefix(self.start.as_slice())?;
        let spells = tokens.iter().flat_map(|id| self.trie.token(*id)).eq(text.as_bytes());
        spells.then(|| tokens.to_vec())
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let bytes = &bytes[..bytes.len().min(MAX_TOKENIZED_BYTES)];
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            self.tokens_of(text).unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
        })
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.is_faithful
    }
}

/// Spelling of a token in the trie. Control tokens, end tokens, tokens that are too long for the trie and
/// tokens without text get a prefix that no text has, so that a grammar's text never produces them.
fn trie_bytes(tokenizer: &Tokenizer, id: u32, is_end: bool) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    let is_control = is_end || tokenizer.is_special(id);
    if bytes.len() > MAX_TOKEN_BYTES || bytes.is_empty() {
        return Vec::new();
    }
    if !is_control && bytes[0] != TokTrie::SPECIAL_TOKEN_MARKER {
        return bytes.to_vec();
    }
    let mut marked = Vec::with_capacity(bytes.len() + 1);
    marked.push(TokTrie::SPECIAL_TOKEN_MARKER);
    marked.extend_from_slice(bytes);
    marked
}
