//! Text to token ids and back, one path for `tokenizer.json` and GGUF vocabularies. Does not know models,
//! requests and chat formats.

mod added_tokens;
mod byte_pairs;
mod charsmap;
mod encode;
mod gguf;
mod gguf_encoder;
mod gguf_vocabulary;
mod infill;
mod normalize;
mod pairs;
mod pieces;
mod pre_tokenizers;
mod sentencepiece;
mod tokenizer_config;
mod tokenizer_json;

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use tokenizers::pipeline::{PipelineModel, PipelineNormalizer, PipelinePreTokenizer, PipelineTokenizer};
use tokenizers::vocab::bucket_added_vocabulary::AddedVocabulary;

use crate::error::TokenizerError;
use encode::Scratch;
pub(crate) use pieces::PieceJoiner;
use pieces::Pieces;

pub use gguf_vocabulary::{GgufEncoderKeys, GgufVocabulary};
pub use infill::{GgufInfillKeys, InfillText, InfillTokens};
pub use pairs::PairFrame;
pub use tokenizer_config::TokenizerConfig;

/// A vocabulary with more ids than this is a broken file: no model has 16 million tokens.
const MAX_VOCABULARY: usize = 1 << 24;

/// Texts longer than this are refused unless [`Tokenizer::limit_to_context`] says otherwise.
const DEFAULT_MAX_TEXT_BYTES: usize = 32 << 20;

/// Options for reading a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Put around the text what the tokenizer puts around a sequence (BOS, for most). Never a second BOS.
    pub add_special_tokens: bool,
    /// Turn the spelling of control tokens (`<|im_end|>`) into those tokens; `false` reads it as plain text.
    pub parse_special: bool,
}

/// A tokenizer: read-only, shared between threads.
pub struct Tokenizer {
    /// Normalizers and whatever else the library reads from a `tokenizer.json`; also the model, unless
    /// `model`.
    frame: PipelineTokenizer,
    pre_tokenizer: PipelinePreTokenizer,
    model: Option<PipelineModel>,
    added: AddedVocabulary,
    /// Number of normalizers that run after added tokens are cut out.
    n_late_normalizers: usize,
    pieces: Pieces,
    /// Tokens that `add_special_tokens` puts before and after a sequence.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    pair: PairFrame,
    roles: TokenRoles,
    infill: Option<InfillTokens>,
    special_tokens: SpecialTokens,
    max_text_bytes: usize,
    scratch: Mutex<Vec<Scratch>>,
    told_double_bos: AtomicBool,
}

/// Roles of tokens, where the files say so.
#[derive(Debug, Clone, Default)]
pub(crate) struct TokenRoles {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    /// Every token that ends a turn or a text, EOS included.
    pub(crate) ends_generation: Vec<u32>,
    /// Tokens for filling in the middle that a GGUF file names.
    pub(crate) infill: GgufInfillKeys,
}

/// The tokens with a meaning of their own, as text: for chat templates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Template variables such as `bos_token` and what they print.
    pub named: Vec<(String, String)>,
    /// The spellings of all control tokens: what a user's text must never become.
    pub control: Vec<String>,
    /// The spellings of added tokens that anyone may write (`<think>`).
    pub plain_added: Vec<String>,
}

/// Parts from a loader; `Tokenizer::assemble` does the rest, which is common to all.
pub(crate) struct Parts {
    frame: PipelineTokenizer,
    model: Option<PipelineModel>,
    added: AddedVocabulary,
    n_late_normalizers: usize,
    entries: Vec<Option<pieces::TokenEntry>>,
    rule: pieces::PieceRule,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    /// Frame that the file puts around a pair of sequences; `None`: that around one.
    pair: Option<PairFrame>,
    roles: TokenRoles,
    /// [`SpecialTokens::named`].
    named: Vec<(String, String)>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json` (any version of the format) and, where there is one, the
    /// `tokenizer_config.json` beside it, which names BOS and EOS.
    ///
    /// # Errors
    /// Whatever is wrong with the files; never a panic.
    pub fn from_tokenizer_json(json: &[u8], config: Option<&[u8]>) -> Result<Self, TokenizerError> {
        let config = config.map(TokenizerConfig::parse).transpose()?;
        guarded(|| tokenizer_json::read(json, config.as_ref()).and_then(Self::assemble))
    }

    /// Builds the tokenizer a GGUF file describes.
    ///
    /// # Errors
    /// Kinds other than byte-level and SentencePiece BPE, WordPiece and unigram, unknown pre-tokenizers,
    /// broken metadata.
    pub fn from_gguf(vocabulary: &GgufVocabulary) -> Result<Self, TokenizerError> {
        guarded(|| gguf::read(vocabulary).and_then(Self::assemble))
    }

    fn assemble(parts: Parts) -> Result<Self, TokenizerError> {
        let pieces = Pieces::build(&parts.entries, &parts.rule)?;
        let known = |id: &u32| (*id as usize) < pieces.len();
        let around_one = || PairFrame::of_one(&parts.prefix, &parts.suffix);
        let pair = parts.pair.clone().unwrap_or_else(around_one);
        if !parts.prefix.iter().chain(&parts.suffix).chain(pair.token_ids()).all(known) {
            return Err(TokenizerError::Malformed(
                "the post-processor adds ids outside the vocabulary".to_owned(),
            ));
        }
        normalize::check(parts.frame.get_normalizers())?;
        let roles = TokenRoles {
            bos: parts.roles.bos.filter(known),
            eos: parts.roles.eos.filter(known),
            ends_generation: parts.roles.ends_generation.into_iter().filter(known).collect(),
            infill: parts.roles.infill,
        };
        let id_of = |name: &str| {
            let is_named = |entry: &Option<pieces::TokenEntry>| {
                entry.as_ref().is_some_and(|entry| entry.added && entry.text == name)
            };
            parts.entries.iter().position(is_named).and_then(|id| u32::try_from(id).ok())
        };
        let infill = InfillTokens::find(&roles.infill, id_of);
        let mut special_tokens = SpecialTokens { named: parts.named, ..SpecialTokens::default() };
        for entry in parts.entries.iter().flatten().filter(|entry| entry.added && !entry.text.is_empty()) {
            let SpecialTokens { control, plain_added, .. } = &mut special_tokens;
            if entry.special { control } else { plain_added }.push(entry.text.clone());
        }
        Ok(Self {
            pre_tokenizer: pre_tokenizers::runnable(parts.frame.get_pre_tokenizer())?,
            frame: parts.frame,
            model: parts.model,
            added: parts.added,
            n_late_normalizers: parts.n_late_normalizers,
            pieces,
            prefix: parts.prefix,
            suffix: parts.suffix,
            pair,
            roles,
            infill,
            special_tokens,
            max_text_bytes: DEFAULT_MAX_TEXT_BYTES,
            scratch: Mutex::new(Vec::new()),
            told_double_bos: AtomicBool::new(false),
        })
    }

    /// Refuses texts that cannot fit a context of `n_tokens` however they are tokenized, before any work is
    /// spent on them: more than 4 × `n_tokens` × the longest token's bytes.
    pub fn limit_to_context(&mut self, n_tokens: usize) {
        self.max_text_bytes = n_tokens
            .saturating_mul(4)
            .saturating_mul(self.pieces.longest_bytes())
            .min(DEFAULT_MAX_TEXT_BYTES);
    }

    /// The longest text, in bytes, that is tokenized at all.
    pub fn max_text_bytes(&self) -> usize {
        self.max_text_bytes
    }

    /// Ids run from 0 to this, exclusive. A model's logits may be longer: padding rows spell nothing.
    pub fn vocabulary_size(&self) -> usize {
        self.pieces.len()
    }

    /// The exact bytes a token adds in the middle of a text; not always whole UTF-8. `None` outside the
    /// vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.pieces.get(id)
    }

    /// The token as readable text: its bytes, with U+FFFD for what is not UTF-8 by itself. Empty outside the
    /// vocabulary.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.pieces.get(id).unwrap_or_default()).into_owned()
    }

    /// The token as the vocabulary file spells it (`Ġhello`, `▁hello`, `<0x0A>`), which is what the
    /// `/tokenize` endpoint calls a token string. `None` outside the vocabulary.
    pub fn vocabulary_text(&self, id: u32) -> Option<String> {
        self.pieces.get(id)?;
        self.added.simple_id_to_token(id).or_else(|| self.model().id_to_token(id))
    }

    /// Whether `id` is a control token, one that stands for no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.pieces.is_special(id)
    }

    /// The control token with this spelling.
    pub fn control_token(&self, text: &str) -> Option<u32> {
        let ids = 0..self.pieces.len() as u32;
        let mut control = ids.filter(|id| self.pieces.is_special(*id));
        control.find(|id| self.pieces.get(*id) == Some(text.as_bytes()))
    }

    /// The token that opens a sequence, where the model has one.
    pub fn bos_token_id(&self) -> Option<u32> {
        self.roles.bos
    }

    /// The token that ends a text, where the model has one.
    pub fn eos_token_id(&self) -> Option<u32> {
        self.roles.eos
    }

    /// Every token the vocabulary says ends a generation: EOS, end of turn, end of message.
    pub fn end_of_generation_token_ids(&self) -> &[u32] {
        &self.roles.ends_generation
    }

    /// The control tokens as text, for chat templates.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special_tokens
    }

    /// One-shot decode. Byte sequences that are not UTF-8 become U+FFFD; ids outside the vocabulary spell
    /// nothing; `skip_special` leaves control tokens out.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut joiner = PieceJoiner::new(&self.pieces, skip_special, false);
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            joiner.push(&self.pieces, id, &mut bytes);
        }
        match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(invalid) => String::from_utf8_lossy(invalid.as_bytes()).into_owned(),
        }
    }

    pub(crate) fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    /// Normalizers of the file, and pre-tokenizers of it that change the text: the library makes one chain of
    /// both, but a space put in front belongs to a piece between added tokens.
    fn normalizers(&self) -> (&[PipelineNormalizer], &[PipelineNormalizer]) {
        let normalizers = self.frame.get_normalizers();
        normalizers.split_at(normalizers.len().saturating_sub(self.n_late_normalizers))
    }

    fn model(&self) -> &PipelineModel {
        self.model.as_ref().unwrap_or_else(|| self.frame.get_model())
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocabulary_size", &self.vocabulary_size()).finish_non_exhaustive()
    }
}

/// Runs a loader with a net under it: the tokenizer library indexes by what a file says, and a broken file
/// must be an error even where the checks before the library missed something.
fn guarded<T>(load: impl FnOnce() -> Result<T, TokenizerError>) -> Result<T, TokenizerError> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(load)).unwrap_or_else(|_| {
        Err(TokenizerError::Malformed("the tokenizer library could not digest the file".to_owned()))
    })
}
