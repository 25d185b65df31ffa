//! The bytes of each token, and joining tokens to text. Does not encode text.

use serde_json::Value;
use tokenizers::utils::byte_level::char_to_byte;

use crate::error::TokenizerError;

/// The SentencePiece word boundary, U+2581.
const METASPACE: char = '▁';

/// Maximum bytes that replacements make of each byte of a token.
const MAX_GROWTH: usize = 16;
/// Maximum number of replacements of a decoder.
const MAX_REPLACEMENTS: usize = 64;

const SPECIAL: u8 = 1;
const ADDED: u8 = 2;
const PRESENT: u8 = 4;

/// A vocabulary entry of a file.
#[derive(Debug, Clone, Default)]
pub(crate) struct TokenEntry {
    /// Spelling in the file (`Ġhello`, `▁hello`, `<0x0A>`, `<|im_end|>`).
    pub(crate) text: String,
    /// Whether it is an added token: matched in text before the model runs, and decoded literally.
    pub(crate) added: bool,
    /// Whether it is a control token: left out of text when special tokens are skipped.
    pub(crate) special: bool,
}

/// Special treatment of the start of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// The first piece is encoded as it is.
    AsIs,
    /// Up to this many leading spaces of the text are dropped (`Strip` decoder).
    StripSpaces(u8),
    /// Every space of the first token is dropped (`Metaspace` decoder).
    SpacelessToken,
    /// The space that joins words is dropped.
    NoJoiner,
}

/// Rule that decodes a token's spelling to bytes; from the `decoder` of a `tokenizer.json`.
#[derive(Debug, Clone)]
pub(crate) struct PieceRule {
    byte_level: bool,
    byte_fallback: bool,
    replace: Vec<(String, String)>,
    /// `Some(prefix)`: words are joined by spaces, except tokens that start with the prefix (`##`).
    word_prefix: Option<String>,
    space_joined: bool,
    start: Start,
}

impl PieceRule {
    const PLAIN: Self = Self {
        byte_level: false,
        byte_fallback: false,
        replace: Vec::new(),
        word_prefix: None,
        space_joined: false,
        start: Start::AsIs,
    };

    /// GPT-2's byte alphabet: each character of a token is one byte.
    pub(crate) fn byte_level() -> Self {
        Self { byte_level: true, ..Self::PLAIN }
    }

    /// SentencePiece: `▁` is a space, `<0xNN>` a byte; the first space is dropped if encoding adds one.
    pub(crate) fn sentencepiece(strips_first_space: bool) -> Self {
        Self {
            byte_fallback: true,
            replace: vec![(METASPACE.to_string(), " ".to_owned())],
            start: if strips_first_space { Start::StripSpaces(1) } else { Start::AsIs },
            ..Self::PLAIN
        }
    }

    /// Parses the canonical `decoder`; `byte_level_model` takes precedence over it, as in the library.
    pub(crate) fn from_decoder(decoder: &Value, byte_level_model: bool) -> Result<Self, TokenizerError> {
        if byte_level_model {
            return Ok(Self::byte_level());
        }
        let mut rule = Self::PLAIN;
        if decoder.is_null() {
            rule.space_joined = true;
            rule.start = Start::NoJoiner;
            return Ok(rule);
        }
        rule.add_step(decoder)?;
        if rule.replace.len() > MAX_REPLACEMENTS {
            let reason = format!("its decoder has more than {MAX_REPLACEMENTS} replacements");
            return Err(TokenizerError::Malformed(reason));
        }
        Ok(rule)
    }

    fn add_step(&mut self, step: &Value) -> Result<(), TokenizerError> {
        let kind = step["type"].as_str().unwrap_or_default();
        match kind {
            "Sequence" => {
                for child in step["decoders"].as_array().map(Vec::as_slice).unwrap_or_default() {
                    self.add_step(child)?;
                }
            }
            "ByteLevel" => self.byte_level = true,
            "ByteFallback" => self.byte_fallback = true,
            "Fuse" => {}
            "Replace" => {
                let (Some(pattern), Some(content)) =
                    (step["pattern"]["String"].as_str(), step["content"].as_str())
                else {
                    return Err(TokenizerError::Unsupported("a Replace decoder with a regex".to_owned()));
                };
                self.replace.push((pattern.to_owned(), content.to_owned()));
            }
            "Strip" => {
                let start = step["start"].as_u64().unwrap_or(0);
                if step["content"].as_str() != Some(" ")
                    || step["stop"].as_u64().unwrap_or(0) != 0
                    || start > 8
                {
                    return Err(TokenizerError::Unsupported(
                        "a Strip decoder of anything but leading spaces".to_owned(),
                    ));
                }
                self.start = Start::StripSpaces(start as u8);
            }
            "Metaspace" => {
                let replacement = step["replacement"].as_str().unwrap_or("▁");
                self.replace.push((replacement.to_owned(), " ".to_owned()));
                if step["prepend_scheme"].as_str() != Some("never") {
                    self.start = Start::SpacelessToken;
                }
            }
            "WordPiece" => {
                self.word_prefix = Some(step["prefix"].as_str().unwrap_or("##").to_owned());
                self.start = Start::NoJoiner;
            }
            other => return Err(TokenizerError::Unsupported(format!("the {other:?} decoder"))),
        }
        Ok(())
    }

    fn spell(&self, entry: &TokenEntry, out: &mut Vec<u8>) -> Result<(), TokenizerError> {
        if self.space_joined || (self.word_prefix.is_some() && entry.added) {
            out.push(b' ');
        }
        if entry.added {
            out.extend_from_slice(entry.text.as_bytes());
            return Ok(());
        }
        let mut text = entry.text.as_str();
        if self.byte_fallback
            && let Some(byte) = byte_token(text)
        {
            out.push(byte);
            return Ok(());
        }
        if self.byte_level {
            let start = out.len();
            for c in text.chars() {
                let Some(byte) = char_to_byte(c) else {
                    // A spelling outside the byte alphabet is used literally.
                    out.truncate(start);
                    out.extend_from_slice(text.as_bytes());
                    return Ok(());
                };
                out.push(byte);
            }
            return Ok(());
        }
        if let Some(prefix) = &self.word_prefix {
            match text.strip_prefix(prefix.as_str()) {
                Some(rest) => text = rest,
                None => out.push(b' '),
            }
        }
        let mut replaced = text.to_owned();
        let limit = MAX_GROWTH.saturating_mul(text.len());
        for (pattern, content) in self.replace.iter().filter(|(pattern, _)| !pattern.is_empty()) {
            let n_bytes = replaced.matches(pattern.as_str()).count().saturating_mul(content.len());
            if n_bytes > limit {
                let reason =
                    format!("its decoder makes more than {limit} bytes of a token of {}", text.len());
                return Err(TokenizerError::Malformed(reason));
            }
            replaced = replaced.replace(pattern, content);
        }
        out.extend_from_slice(replaced.as_bytes());
        Ok(())
    }
}

/// The byte of a `<0xNN>` token.
pub(crate) fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// All tokens' bytes in one buffer, by id.
#[derive(Debug)]
pub(crate) struct Pieces {
    slab: Vec<u8>,
    /// End of each token in the buffer; a token starts where its predecessor ends.
    ends: Vec<u32>,
    flags: Vec<u8>,
    start: Start,
    longest_bytes: usize,
}

impl Pieces {
    /// `entries[id]` is the token with that id; `None` for unused ids.
    pub(crate) fn build(entries: &[Option<TokenEntry>], rule: &PieceRule) -> Result<Self, TokenizerError> {
        let mut pieces = Self {
            slab: Vec::new(),
            ends: Vec::with_capacity(entries.len()),
            flags: Vec::with_capacity(entries.len()),
            start: rule.start,
            longest_bytes: 1,
        };
        for entry in entries {
            let from = pieces.slab.len();
            let mut flags = 0;
            if let Some(entry) = entry {
                rule.spell(entry, &mut pieces.slab)?;
                flags =
                    PRESENT | if entry.special { SPECIAL } else { 0 } | if entry.added { ADDED } else { 0 };
            }
            pieces.longest_bytes = pieces.longest_bytes.max(pieces.slab.len() - from);
            let end = u32::try_from(pieces.slab.len())
                .map_err(|_| TokenizerError::Malformed("the vocabulary spells more than 4 GiB".to_owned()))?;
            pieces.ends.push(end);
            pieces.flags.push(flags);
        }
        Ok(pieces)
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn longest_bytes(&self) -> usize {
        self.longest_bytes
    }

    pub(crate) fn get(&self, id: u32) -> Option<&[u8]> {
        let idx = id as usize;
        if self.flags.get(idx)? & PRESENT == 0 {
            return None;
        }
        let start = if idx == 0 { 0 } else { self.ends[idx - 1] as usize };
        Some(&self.slab[start..self.ends[idx] as usize])
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.flags.get(id as usize).is_some_and(|flags| flags & SPECIAL != 0)
    }

    fn is_added(&self, id: u32) -> bool {
        self.flags.get(id as usize).is_some_and(|flags| flags & ADDED != 0)
    }
}

/// Joins tokens into the bytes of a text, one token at a time. `Tokenizer::decode` and the detokenizer both
/// use it, so a stream of deltas and a one-shot decode cannot differ.
#[derive(Debug, Clone)]
pub(crate) struct PieceJoiner {
    skip_special: bool,
    is_first: bool,
    /// Number of leading spaces that are still to be dropped.
    n_strip: u8,
}

impl Pieces {
    /// Identity of the vocabulary: that of the bytes and the flags of all tokens.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        hash.update(&self.slab);
        self.ends.iter().for_each(|end| hash.update(&end.to_le_bytes()));
        hash.update(&self.flags);
        hash.digest()
    }
}

impl PieceJoiner {
    /// Creates a joiner. With `continues`, text precedes, so that the first token is not treated specially.
    pub(crate) fn new(pieces: &Pieces, skip_special: bool, continues: bool) -> Self {
        let n_strip = match pieces.start {
            Start::StripSpaces(n) if !continues => n,
            _ => 0,
        };
        Self { skip_special, is_first: !continues, n_strip }
    }

    /// Appends the bytes of token `id`; ids outside the vocabulary are ignored.
    pub(crate) fn push(&mut self, pieces: &Pieces, id: u32, out: &mut Vec<u8>) {
        if self.skip_special && pieces.is_special(id) {
            return;
        }
        let Some(mut piece) = pieces.get(id) else { return };
        if std::mem::take(&mut self.is_first) {
            match pieces.start {
                Start::SpacelessToken if !pieces.is_added(id) => {
                    out.extend(piece.iter().filter(|byte| **byte != b' '));
                    return;
                }
                Start::NoJoiner => piece = piece.strip_prefix(b" ").unwrap_or(piece),
                _ => {}
            }
        }
        while self.n_strip > 0 && !piece.is_empty() {
            match piece.strip_prefix(b" ") {
                Some(rest) => {
                    piece = rest;
                    self.n_strip -= 1;
                }
                None => self.n_strip = 0,
            }
        }
        out.extend_from_slice(piece);
    }
}
