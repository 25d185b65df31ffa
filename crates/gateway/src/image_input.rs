//! The images that a model takes: from files to the values of its encoder and to places in a prompt. Does not
//! know requests and encoders.

use std::sync::Arc;

use serde_json::Value;
use throng_core::prompt_media::{ContentLayout, FeatureRun, MediaContent, PromptMedia, PromptSpan, SpanKind};
use throng_core::request::TokenId;
use throng_images::{DecodeLimits, ImageError, Piece, ProcessedImage, Processor, decode};
use throng_text::{RenderedPrompt, Tokenizer};

/// Rules by which a model takes images.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageInput {
    /// Converts files to pixel values.
    pub processor: Processor,
    /// The token whose embeddings an image's features replace.
    pub token: TokenId,
    /// The text of the token.
    pub token_text: String,
    /// The text with which the chat template marks an image.
    pub marker: String,
    /// Bounds of decoding.
    pub limits: DecodeLimits,
}

impl ImageInput {
    /// Reads how a model takes images from its `preprocessor_config.json` (or `processor_config.json`) and
    /// its `config.json`.
    ///
    /// # Errors
    /// A processor that is not supported; an image token that is missing, or that users' text could spell.
    pub fn new(preprocessor: &Value, config: &Value, tokenizer: &Tokenizer) -> Result<Self, String> {
        let processor = Processor::from_config(preprocessor, config).map_err(|error| error.to_string())?;
        let named = ["image_token_id", "image_token_index"].iter().find_map(|key| config.get(key)?.as_u64());
        let token =
            named.and_then(|id| TokenId::try_from(id).ok()).ok_or("config.json names no image token")?;
        let token_text = tokenizer.vocabulary_text(token).ok_or("the vocabulary lacks the image token")?;
        let marker = processor.marker().map_or_else(|| token_text.clone(), str::to_owned);
        let control = &tokenizer.special_tokens().control;
        if let Some(text) = [&token_text, &marker].into_iter().find(|text| !control.contains(text)) {
            return Err(format!("{text:?} is no control token"));
        }
        Ok(Self { processor, token, token_text, marker, limits: DecodeLimits::default() })
    }

    /// Decodes and processes a file.
    ///
    /// # Errors
    /// A file that is damaged or beyond the bounds; an image whose shape the model does not take.
    pub fn process(&self, file: &[u8]) -> Result<ProcessedImage, ImageError> {
        self.processor.process(&decode(file, &self.limits)?)
    }

    /// Puts the tokens of the images in the places that the template marked.
    ///
    /// # Errors
    /// [`Misplaced`] if it marked more or fewer places.
    pub fn expand(&self, prompt: &mut RenderedPrompt, images: &[ProcessedImage]) -> Result<(), Misplaced> {
        let text = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone().into_owned(),
            Piece::Tokens(n) => self.token_text.repeat(*n as usize),
        };
        let texts: Vec<String> = images.iter().map(|image| image.pieces.iter().map(text).collect()).collect();
        prompt.expand(&self.marker, &texts).map_err(|_| Misplaced)
    }

    /// The images at their places among the tokens of the prompt.
    ///
    /// # Errors
    /// [`Misplaced`] if the prompt has another number of their tokens.
    pub fn place(&self, images: Vec<ProcessedImage>, tokens: &[TokenId]) -> Result<PromptMedia, Misplaced> {
        let n_prompt = u32::try_from(tokens.len()).map_err(|_| Misplaced)?;
        let places = (0..n_prompt).zip(tokens).filter(|(_, token)| **token == self.token);
        let places: Vec<u32> = places.map(|(place, _)| place).collect();
        let n_tokens: u64 = images.iter().map(|image| u64::from(image.n_tokens())).sum();
        if places.len() as u64 != n_tokens {
            return Err(Misplaced);
        }
        let mut media = PromptMedia::default();
        let mut grids = Vec::new();
        let mut places = places.as_slice();
        for image in images {
            let (own, rest) = places.split_at(image.n_tokens() as usize);
            places = rest;
            let (Some(first), Some(last)) = (own.first(), own.last()) else { return Err(Misplaced) };
            let (grid, len) = (image.rotary_grid, last - first + 1);
            let content = content_of(image, own).ok_or(Misplaced)?;
            let digest = content.digest();
            let span = PromptSpan { start: *first, len, digest, kind: SpanKind::Image };
            grids.extend(grid.map(|[rows, columns]| (span, [1, rows, columns])));
            media.spans.push(span);
            if media.contents.iter().all(|known| known.digest() != digest) {
                media.contents.push(Arc::new(content));
            }
        }
        if !grids.is_empty() {
            media.positions = PromptMedia::grid_positions(n_prompt, &grids);
        }
        Ok(media)
    }
}

/// The prompt does not show each image once: its chat template left one out, or moved it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the model's chat template does not show each image of this conversation")]
pub struct Misplaced;

/// The values of an image whose tokens have these places.
fn content_of(image: ProcessedImage, places: &[u32]) -> Option<MediaContent> {
    let first = *places.first()?;
    let mut runs: Vec<FeatureRun> = Vec::new();
    for place in places {
        let offset = place - first;
        match runs.last_mut().filter(|run| run.offset + run.len == offset) {
            Some(run) => run.len += 1,
            None => runs.push(FeatureRun { offset, len: 1 }),
        }
    }
    let layout = ContentLayout { kind: SpanKind::Image, grid: image.grid, shape: image.shape, runs };
    MediaContent::new(layout, image.pixels.into()).ok()
}
