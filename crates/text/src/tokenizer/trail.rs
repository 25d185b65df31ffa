//! Tokens of a conversation so far, so that its next turn takes over the tokens that the model has generated
//! in place of those of their text, which may be others. Does not know templates and messages.

use std::fmt;
use std::mem::size_of;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use xxhash_rust::xxh3::Xxh3;

use super::{PieceJoiner, Tokenizer};

/// Maximum number of marks of one turn; the end of the turn is always one of them.
const MAX_MARKS: usize = 64;
/// Version of the written form.
const VERSION: u8 = 1;
/// Byte before a control token in what is digested; no text has it.
const CONTROL: u8 = 0xff;

/// A place at which a prompt may go on from tokens of a trail: before a control token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// Number of tokens before the place.
    pub(super) n_tokens: usize,
    /// Number of digested bytes before the place.
    pub(super) n_bytes: u64,
    /// Digest of the text and the control tokens before the place.
    pub(super) digest: u128,
}

/// Prompt and answer of the last turn as tokens. A prompt whose text begins like them begins with the same
/// tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenTrail {
    pub(super) tokens: Vec<u32>,
    /// Marks, their places rising.
    pub(super) marks: Vec<Mark>,
}

/// Part of a trail that one turn adds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrailPart {
    /// Number of tokens of the trail before that stay.
    n_kept: usize,
    tokens: Vec<u32>,
    marks: Vec<Mark>,
}

/// A prompt that was encoded along a trail.
#[derive(Debug, Clone)]
pub struct PromptTrail {
    /// Number of its tokens that are those of the trail.
    pub(super) n_kept: usize,
    pub(super) digest: SegmentDigest,
}

/// Digest of a prompt as the tokenizer sees it: text between control tokens.
#[derive(Clone)]
pub(super) struct SegmentDigest {
    hash: Xxh3,
    n_bytes: u64,
}

impl fmt::Debug for SegmentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SegmentDigest").field("n_bytes", &self.n_bytes).finish_non_exhaustive()
    }
}

impl SegmentDigest {
    /// Begins a prompt of the tokenizer with this fingerprint.
    pub(super) fn new(fingerprint: u64, add_special_tokens: bool) -> Self {
        let mut digest = Self { hash: Xxh3::with_seed(fingerprint), n_bytes: 0 };
        digest.push(&[u8::from(add_special_tokens)]);
        digest
    }

    fn push(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.n_bytes += bytes.len() as u64;
    }

    pub(super) fn text(&mut self, text: &str) {
        self.push(text.as_bytes());
    }

    pub(super) fn control(&mut self, id: u32) {
        self.push(&[CONTROL]);
        self.push(&id.to_le_bytes());
    }

    fn mark(&self, n_tokens: usize) -> Mark {
        Mark { n_tokens, n_bytes: self.n_bytes, digest: self.hash.digest128() }
    }

    /// Whether the mark is at this place, after the same text.
    pub(super) fn is_at(&self, mark: &Mark) -> bool {
        self.n_bytes == mark.n_bytes && self.hash.digest128() == mark.digest
    }

    /// Whether the mark is before this place.
    pub(super) fn is_past(&self, mark: &Mark) -> bool {
        self.n_bytes > mark.n_bytes
    }
}

impl TokenTrail {
    /// The trail after one more turn; empty if the part is not one of this trail.
    #[must_use]
    pub fn with(&self, part: &TrailPart) -> Self {
        let Some(kept) = self.tokens.get(..part.n_kept) else { return Self::default() };
        let marks = self.marks.iter().take_while(|mark| mark.n_tokens <= part.n_kept);
        Self { tokens: [kept, &part.tokens].concat(), marks: marks.chain(&part.marks).copied().collect() }
    }

    /// The whole trail as one part.
    pub fn to_part(&self) -> TrailPart {
        TrailPart { n_kept: 0, tokens: self.tokens.clone(), marks: self.marks.clone() }
    }

    /// Whether no prompt can go on from it.
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Bytes of memory that it holds.
    pub fn n_bytes(&self) -> usize {
        self.tokens.len() * size_of::<u32>() + self.marks.len() * size_of::<Mark>()
    }
}

impl PromptTrail {
    /// Number of prompt tokens that were taken from the trail.
    pub fn n_kept(&self) -> usize {
        self.n_kept
    }

    /// The part of the trail that the turn adds with this prompt and this answer.
    pub fn part(&self, tokenizer: &Tokenizer, prompt: &[u32], answer: &[u32]) -> TrailPart {
        let mut digest = self.digest.clone();
        let mut joiner = PieceJoiner::new(tokenizer.pieces(), false, false);
        let (mut text, mut marks) = (Vec::new(), Vec::new());
        for (n, &id) in (prompt.len()..).zip(answer) {
            if !tokenizer.splits_text(id) {
                joiner.push(tokenizer.pieces(), id, &mut text);
                continue;
            }
            digest.text(&String::from_utf8_lossy(&text));
            text.clear();
            if marks.len() < MAX_MARKS - 1 {
                marks.push(digest.mark(n));
            }
            digest.control(id);
        }
        if answer.last().is_some_and(|id| !tokenizer.splits_text(*id)) {
            digest.text(&String::from_utf8_lossy(&text));
            marks.push(digest.mark(prompt.len() + answer.len()));
        }
        let n_kept = self.n_kept.min(prompt.len());
        TrailPart { n_kept, tokens: [&prompt[n_kept..], answer].concat(), marks }
    }
}

impl TrailPart {
    /// Written form, which [`Self::parse`] reads.
    pub fn to_text(&self) -> String {
        let mut bytes = vec![VERSION];
        push_number(&mut bytes, self.n_kept as u64);
        push_number(&mut bytes, self.tokens.len() as u64);
        self.tokens.iter().for_each(|token| push_number(&mut bytes, u64::from(*token)));
        push_number(&mut bytes, self.marks.len() as u64);
        for mark in &self.marks {
            push_number(&mut bytes, mark.n_tokens as u64);
            push_number(&mut bytes, mark.n_bytes);
            bytes.extend(mark.digest.to_le_bytes());
        }
        STANDARD_NO_PAD.encode(bytes)
    }

    /// Reads a written part; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = STANDARD_NO_PAD.decode(text).ok()?;
        let (version, mut rest) = bytes.split_first()?;
        if *version != VERSION {
            return None;
        }
        let rest = &mut rest;
        let n_kept = usize::try_from(take_number(rest)?).ok()?;
        let n_tokens = usize::try_from(take_number(rest)?).ok().filter(|n| *n <= rest.len())?;
        let tokens =
            (0..n_tokens).map(|_| u32::try_from(take_number(rest)?).ok()).collect::<Option<Vec<_>>>();
        let (tokens, n_marks) = (tokens?, take_number(rest)?);
        let n_marks = usize::try_from(n_marks).ok().filter(|n| *n <= rest.len())?;
        let marks = (0..n_marks).map(|_| take_mark(rest)).collect::<Option<Vec<_>>>()?;
        let rises = marks.is_sorted_by(|a, b| a.n_tokens < b.n_tokens && a.n_bytes < b.n_bytes);
        let end = n_kept.checked_add(tokens.len())?;
        let is_within = marks.iter().all(|mark| (n_kept..=end).contains(&mark.n_tokens));
        (rest.is_empty() && rises && is_within).then_some(Self { n_kept, tokens, marks })
    }
}

/// Appends a number, seven bits a byte, the lowest first.
fn push_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take_number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for place in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f).checked_shl(place)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn take_mark(rest: &mut &[u8]) -> Option<Mark> {
    let (n_tokens, n_bytes) = (usize::try_from(take_number(rest)?).ok()?, take_number(rest)?);
    let (digest, after) = rest.split_first_chunk::<16>()?;
    *rest = after;
    Some(Mark { n_tokens, n_bytes, digest: u128::from_le_bytes(*digest) })
}
