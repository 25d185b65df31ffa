//! The images that a model takes: their processor, the token that keeps their place, and the bounds of decoding.
//! Does not know requests and encoders.

use serde_json::Value;
use throng_core::request::TokenId;
use throng_images::{DecodeLimits, Processor};
use throng_text::Tokenizer;

/// How a model takes images.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageInput {
    /// Files to values.
    pub processor: Processor,
    /// The token in place of whose embeddings an image's features stand.
    pub token: TokenId,
    /// The text of the token.
    pub token_text: String,
    /// The text with which the chat template marks an image.
    pub marker: String,
    /// Bounds of decoding.
    pub limits: DecodeLimits,
}

impl ImageInput {
    /// Reads how a model takes images from its `preprocessor_config.json` (or `processor_config.json`) and its
    /// `config.json`.
    ///
    /// # Errors
    /// A processor that is not supported; an image token that is missing, or that users' text could spell.
    pub fn new(preprocessor: &Value, config: &Value, tokenizer: &Tokenizer) -> Result<Self, String> {
        let processor = Processor::from_config(preprocessor, config).map_err(|error| error.to_string())?;
        let named = ["image_token_id", "image_token_index"].iter().find_map(|key| config.get(key)?.as_u64());
        let token = named.and_then(|id| TokenId::try_from(id).ok()).ok_or("config.json names no image token")?;
        let token_text = tokenizer.vocabulary_text(token).ok_or("the vocabulary lacks the image token")?;
        let marker = processor.marker().map_or_else(|| token_text.clone(), str::to_owned);
        let control = &tokenizer.special_tokens().control;
        if let Some(text) = [&token_text, &marker].into_iter().find(|text| !control.contains(text)) {
            return Err(format!("{text:?} is no control token"));
        }
        Ok(Self { processor, token, token_text, marker, limits: DecodeLimits::default() })
    }
}
