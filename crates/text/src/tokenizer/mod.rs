//! Converts text to token ids and back, for `tokenizer.json` and GGUF vocabularies alike. Does not know
//! models, requests and chat formats.

mod added_tokens;
mod along;
mod byte_pairs;
mod charsmap;
mod encode;
mod gguf;
mod gguf_encoder;
mod gguf_vocabulary;
mod infill;
mod normalize;
mod originals;
mod pairs;
mod pieces;
mod pre_tokenizers;
mod sentencepiece;
mod tokenizer_config;
mod tokenizer_json;
mod trail;

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
pub use originals::{ConvertedVocabulary, OriginalVocabulary};
pub use pairs::PairFrame;
pub use tokenizer_config::TokenizerConfig;
pub use trail::{PromptTrail, TokenTrail, TrailPart};

/// Maximum number of ids; a file with more is broken, since no model has 16 million tokens.
const MAX_VOCABULARY: usize = 1 << 24;

/// Default maximum bytes of a text; [`Tokenizer::limit_to_context`] changes it.
const DEFAULT_MAX_TEXT_BYTES: usize = 32 << 20;

/// Options for encoding a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Whether to add the tokens that the tokenizer puts around a sequence (usually BOS). Never adds a
    /// second BOS.
    pub add_special_tokens: bool,
    /// Whether to encode the spelling of control tokens (`<|im_end|>`) as those tokens; `false`: as plain
    /// text.
    pub parse_special: bool,
}

/// A tokenizer: read-only, shared between threads.
pub struct Tokenizer {
    /// The library's form of `tokenizer.json`: normalizers and other parts, and also the model, unless
    /// `model` has it.
    frame: PipelineTokenizer,
    pre_tokenizer: PipelinePreTokenizer,
    model: Option<PipelineModel>,
    added: AddedVocabulary,
    /// Number of normalizers that run after added tokens are split off.
    n_late_normalizers: usize,
    pieces: Pieces,
    /// Tokens that `add_special_tokens` puts before and after a sequence.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    pair: PairFrame,
    roles: TokenRoles,
    infill: Option<InfillTokens>,
    special_tokens: SpecialTokens,
    /// Added tokens that are split off before text is normalized, in order.
    split_off: Vec<u32>,
    /// Identity of the vocabulary.
    fingerprint: u64,
    max_text_bytes: usize,
    scratch: Mutex<Vec<Scratch>>,
    told_double_bos: AtomicBool,
}

/// Roles of tokens, if the files define them.
#[derive(Debug, Clone, Default)]
pub(crate) struct TokenRoles {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    /// Tokens that end a turn or a text, including EOS.
    pub(crate) ends_generation: Vec<u32>,
    /// Fill-in-the-middle tokens in a GGUF file.
    pub(crate) infill: GgufInfillKeys,
}

/// Special tokens as text, for chat templates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Template variables such as `bos_token`, with their text.
    pub named: Vec<(String, String)>,
    /// Spellings of all control tokens, which users' text must never become.
    pub control: Vec<String>,
    /// Spellings of added tokens that anyone may write (`<think>`).
    pub plain_added: Vec<String>,
}

/// Parts of a tokenizer from a loader, assembled by `Tokenizer::assemble`.
pub(crate) struct Parts {
    frame: PipelineTokenizer,
    model: Option<PipelineModel>,
    added: AddedVocabulary,
    n_late_normalizers: usize,
    entries: Vec<Option<pieces::TokenEntry>>,
    rule: pieces::PieceRule,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    /// Special tokens around a pair of sequences; `None`: those around a single one.
    pair: Option<PairFrame>,
    roles: TokenRoles,
    /// Value of [`SpecialTokens::named`].
    named: Vec<(String, String)>,
}

impl Tokenizer {
    /// Builds the tokenizer from a `tokenizer.json` (any version of the format) and, if there is one, the
    /// `tokenizer_config.json` beside it, which names BOS and EOS.
    ///
    /// # Errors
    /// Any fault of the files; never panics.
    pub fn from_tokenizer_json(json: &[u8], config: Option<&[u8]>) -> Result<Self, TokenizerError> {
        let config = config.map(TokenizerConfig::parse).transpose()?;
        guarded(|| tokenizer_json::read(json, config.as_ref()).and_then(Self::assemble))
    }

    /// Builds the tokenizer that a GGUF file describes.
    ///
    /// # Errors
    /// When its kind is not byte-level or SentencePiece BPE, WordPiece or unigram, its pre-tokenizer is
    /// unknown, or the metadata is broken.
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
        let added = parts.entries.iter().enumerate().filter(|(_, entry)| {
            let text = entry.as_ref().filter(|entry| entry.added).map(|entry| entry.text.as_str());
            text.is_some_and(|text| along::is_split_off(&parts.added, text))
        });
        let split_off = added.filter_map(|(id, _)| u32::try_from(id).ok()).collect();
        Ok(Self {
            split_off,
            fingerprint: pieces.fingerprint(),
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

    /// Refuses texts that cannot fit a context of `n_tokens` in any tokenization, before any work on them:
    /// those of more than 4 × `n_tokens` × the longest token's bytes.
    pub fn limit_to_context(&mut self, n_tokens: usize) {
        self.max_text_bytes = n_tokens
            .saturating_mul(4)
            .saturating_mul(self.pieces.longest_bytes())
            .min(DEFAULT_MAX_TEXT_BYTES);
    }

    /// Maximum bytes of a text that is tokenized.
    pub fn max_text_bytes(&self) -> usize {
        self.max_text_bytes
    }

    /// Number of ids; they start at 0. A model may have more logits: padding rows have no text.
    pub fn vocabulary_size(&self) -> usize {
        self.pieces.len()
    }

    /// The exact bytes of a token in the middle of a text, which may not be whole UTF-8. `None` outside of
    /// the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.pieces.get(id)
    }

    /// Number of tokens at the beginning of `ids` whose bytes are all among the first `n_bytes`.
    pub fn n_tokens_within(&self, ids: &[u32], n_bytes: usize) -> usize {
        let mut n_left = n_bytes;
        let is_within = |id: &&u32| {
            let rest = n_left.checked_sub(self.pieces.get(**id).map_or(0, <[u8]>::len));
            rest.inspect(|&rest| n_left = rest).is_some()
        };
        ids.iter().take_while(is_within).count()
    }

    /// The token as readable text: its bytes, with U+FFFD for parts that are not UTF-8. Empty outside of
    /// the vocabulary.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.pieces.get(id).unwrap_or_default()).into_owned()
    }

    /// The token's spelling in the vocabulary file (`Ġhello`, `▁hello`, `<0x0A>`), which the `/tokenize`
    /// endpoint calls a token string. `None` outside of the vocabulary.
    pub fn vocabulary_text(&self, id: u32) -> Option<String> {
        self.pieces.get(id)?;
        self.added.simple_id_to_token(id).or_else(|| self.model().id_to_token(id))
    }

    /// Whether `id` is a control token, which has no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.pieces.is_special(id)
    }

    /// The control token with this spelling.
    pub fn control_token(&self, text: &str) -> Option<u32> {
        let ids = 0..self.pieces.len() as u32;
        let mut control = ids.filter(|id| self.pieces.is_special(*id));
        control.find(|id| self.pieces.get(*id) == Some(text.as_bytes()))
    }

    /// The token that starts a sequence, if the model has one.
    pub fn bos_token_id(&self) -> Option<u32> {
        self.roles.bos
    }

    /// The token that ends a text, if the model has one.
    pub fn eos_token_id(&self) -> Option<u32> {
        self.roles.eos
    }

    /// All tokens that end a generation according to the vocabulary: EOS, end of turn, end of message.
    pub fn end_of_generation_token_ids(&self) -> &[u32] {
        &self.roles.ends_generation
    }

    /// The control tokens as text, for chat templates.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special_tokens
    }

    /// Decodes a whole sequence. Bytes that are not UTF-8 become U+FFFD; ids outside of the vocabulary have
    /// no text; `skip_special` leaves control tokens out.
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

    /// The file's normalizers, and its pre-tokenizers that change the text: the library chains both, but an
    /// inserted space belongs to a piece between added tokens.
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

/// Runs a loader and converts panics into errors: the tokenizer library indexes by values in the file, and
/// the checks may have missed a fault.
fn guarded<T>(load: impl FnOnce() -> Result<T, TokenizerError>) -> Result<T, TokenizerError> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(load)).unwrap_or_else(|_| {
        Err(TokenizerError::Malformed("the tokenizer library could not digest the file".to_owned()))
    })
}
