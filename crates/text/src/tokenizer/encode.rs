//! Encodes text to tokens: splits off added tokens, normalizes, pre-tokenizes, runs the model. Does not
//! know the origin of the text, except that disguised parts never become control tokens.

use std::borrow::Cow;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use tokenizers::pipeline::{
    Model, PipelineModelScratch, PipelineToken, PreTokenizer, PreTokenizerScratch, Segment, Span,
    SpecialSegmentIterator,
};

use super::normalize::Growth;
use super::{EncodeOptions, Tokenizer};
use crate::disguise::Disguise;
use crate::error::TextError;
use crate::rendered_prompt::RenderedPrompt;

/// Maximum number of buffers kept for reuse; further threads allocate new ones.
const MAX_IDLE_SCRATCH: usize = 16;

/// Capacity in tokens above which a buffer is not kept.
const MAX_KEPT_TOKENS: usize = 1 << 20;

/// Number of pieces tokenized between two checks of the stop flag.
const PIECES_A_LOOK: usize = 4096;

/// Flag of a caller that no longer needs the tokens.
pub(super) type StopFlag<'a> = Option<&'a AtomicBool>;

/// A text to encode.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    pub text: &'a str,
    pub disguise: Option<&'a Disguise>,
    pub options: EncodeOptions,
    /// Number of segments at the beginning whose tokens are known.
    pub n_skipped: usize,
}

/// Scratch buffers of one encode call.
pub(crate) struct Scratch {
    model: PipelineModelScratch,
    split: PreTokenizerScratch,
    spans: Vec<Span>,
    tokens: Vec<PipelineToken>,
}

impl Tokenizer {
    /// The token ids of `text`.
    ///
    /// # Errors
    /// [`TextError::TooLong`] before any work; [`TextError::Encode`] if the library fails.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TextError> {
        self.encode_disguised(text, None, options, None)
    }

    /// Encodes like [`Self::encode`], until the caller sets `stop`.
    ///
    /// # Errors
    /// Errors of [`Self::encode`]; [`TextError::Stopped`].
    pub fn encode_unless(
        &self,
        text: &str,
        options: EncodeOptions,
        stop: &AtomicBool,
    ) -> Result<Vec<u32>, TextError> {
        self.encode_disguised(text, None, options, Some(stop))
    }

    /// Encodes a rendered conversation. Control tokens come from the template only; users' text is always
    /// plain text.
    ///
    /// # Errors
    /// Errors of [`Self::encode`].
    pub fn encode_rendered(
        &self,
        prompt: &RenderedPrompt,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, TextError> {
        let options = EncodeOptions { add_special_tokens, parse_special: true };
        self.encode_disguised(&prompt.disguised, Some(&prompt.disguise), options, None)
    }

    /// Encodes like [`Self::encode_rendered`], until the caller sets `stop`.
    ///
    /// # Errors
    /// Errors of [`Self::encode`]; [`TextError::Stopped`].
    pub fn encode_rendered_unless(
        &self,
        prompt: &RenderedPrompt,
        add_special_tokens: bool,
        stop: &AtomicBool,
    ) -> Result<Vec<u32>, TextError> {
        let options = EncodeOptions { add_special_tokens, parse_special: true };
        self.encode_disguised(&prompt.disguised, Some(&prompt.disguise), options, Some(stop))
    }

    /// Encodes like [`Self::encode`], but parts of `text` in `disguise` are always plain text.
    fn encode_disguised(
        &self,
        text: &str,
        disguise: Option<&Disguise>,
        options: EncodeOptions,
        stop: StopFlag<'_>,
    ) -> Result<Vec<u32>, TextError> {
        self.check_length(text, disguise)?;
        self.encode_source(&Source { text, disguise, options, n_skipped: 0 }, stop)
    }

    /// Refuses a text that is too long.
    pub(super) fn check_length(&self, text: &str, disguise: Option<&Disguise>) -> Result<(), TextError> {
        if text.len() > self.max_text_bytes {
            let n_bytes = disguise.map_or(text.len(), |disguise| disguise.reveal(text).len());
            if n_bytes > self.max_text_bytes {
                return Err(TextError::TooLong { n_bytes, limit_bytes: self.max_text_bytes });
            }
        }
        Ok(())
    }

    /// Encodes a text whose length was checked.
    pub(super) fn encode_source(
        &self,
        source: &Source<'_>,
        stop: StopFlag<'_>,
    ) -> Result<Vec<u32>, TextError> {
        let mut scratch = self.take_scratch();
        scratch.tokens.clear();
        let outcome = self.encode_segments(source, stop, &mut scratch);
        let ids = outcome.map(|()| self.with_specials(&scratch.tokens, source.options.add_special_tokens));
        self.keep_scratch(scratch);
        if is_set(stop) {
            return Err(TextError::Stopped);
        }
        ids.map_err(|error| TextError::Encode(error.to_string()))
    }

    fn encode_segments(
        &self,
        source: &Source<'_>,
        stop: StopFlag<'_>,
        scratch: &mut Scratch,
    ) -> tokenizers::Result<()> {
        let Source { text, disguise, options, n_skipped } = *source;
        let growth = Growth::of(text.len());
        let segments = SpecialSegmentIterator::new(text, &self.added, false, !options.parse_special);
        for segment in segments.skip(n_skipped) {
            match segment {
                Segment::SpecialToken(id) => scratch.tokens.push(id.into()),
                Segment::Text { text, input_offset } => {
                    // After this point only the model and normalized added tokens match, none of which is a
                    // control token, so that the original characters can be restored.
                    let text = disguise.map_or(Cow::Borrowed(text), |disguise| disguise.reveal(text));
                    self.encode_chunk(&text, input_offset, (&growth, stop), scratch)?;
                    if is_set(stop) {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    fn encode_chunk(
        &self,
        text: &str,
        offset: usize,
        (growth, stop): (&Growth, StopFlag<'_>),
        scratch: &mut Scratch,
    ) -> tokenizers::Result<()> {
        let (early, late) = self.normalizers();
        let normalized = growth.normalize(early, text, offset)?;
        for segment in SpecialSegmentIterator::new(&normalized, &self.added, true, true) {
            match segment {
                Segment::SpecialToken(id) => scratch.tokens.push(id.into()),
                Segment::Text { text, input_offset } => {
                    let text = growth.normalize(late, text, offset + input_offset)?;
                    if u32::try_from(text.len()).is_err() {
                        return Err("more than 4 GiB after normalization".into());
                    }
                    let Scratch { model, split, spans, tokens } = &mut *scratch;
                    spans.clear();
                    self.pre_tokenizer.pre_tokenize(&text, split, spans)?;
                    for some in spans.chunks(PIECES_A_LOOK) {
                        if is_set(stop) {
                            return Ok(());
                        }
                        self.model().tokenize_spans(&text, some, model, tokens)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn with_specials(&self, tokens: &[PipelineToken], add_special_tokens: bool) -> Vec<u32> {
        // Ids beyond the vocabulary represent bytes without a token.
        let known = tokens.iter().map(|token| token.id()).filter(|id| (*id as usize) < self.pieces.len());
        let mut ids = Vec::with_capacity(tokens.len() + self.prefix.len() + self.suffix.len());
        if !add_special_tokens {
            ids.extend(known);
            return ids;
        }
        ids.extend_from_slice(&self.prefix);
        let n_before = ids.len();
        ids.extend(known);
        let has_bos = n_before > 0 && self.roles.bos == ids.get(n_before - 1).copied();
        if has_bos && ids.get(n_before) == ids.get(n_before - 1) {
            ids.remove(n_before);
            if !self.told_double_bos.swap(true, Ordering::Relaxed) {
                tracing::info!("a prompt already begins with BOS; the tokenizer adds no second one");
            }
        }
        ids.extend_from_slice(&self.suffix);
        ids
    }

    fn take_scratch(&self) -> Scratch {
        let idle = self.scratch.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.unwrap_or_else(|| Scratch {
            model: self.model().init_scratch(),
            split: PreTokenizerScratch::default(),
            spans: Vec::new(),
            tokens: Vec::new(),
        })
    }

    fn keep_scratch(&self, scratch: Scratch) {
        let mut idle = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE_SCRATCH && scratch.tokens.capacity() <= MAX_KEPT_TOKENS {
            idle.push(scratch);
        }
    }
}

fn is_set(stop: StopFlag<'_>) -> bool {
    stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
}
