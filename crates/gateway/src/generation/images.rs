//! Images of a conversation, within the memory budget. Decoding runs in the turns of tokenization, off the
//! socket threads. Does not know formats and templates.

use std::sync::Arc;

use throng_api::ApiError;
use throng_api::openai::tokenize::ImageSpan;
use throng_api::spec::{Conversation, ImagePart, ImageSource, MAX_IMAGES};
use throng_core::prompt_media::PromptMedia;
use throng_core::request::TokenId;
use throng_http::memory::{MemoryBudget, Part, Reservation};
use throng_images::{ProcessedImage, read_header};
use throng_text::RenderedPrompt;

use super::work::Abandoned;
use crate::image_input::{ImageInput, Misplaced};
use crate::rejection::memory_full;

/// Images of a conversation, in order, processed.
#[derive(Debug)]
pub(super) struct ConversationImages<'m> {
    input: &'m ImageInput,
    images: Vec<ProcessedImage>,
    /// Reservation for the values of the images.
    memory: Reservation,
}

/// Data of a prompt other than its tokens.
#[derive(Debug)]
pub(crate) struct EncodedMedia {
    /// Spans, positions and contents.
    pub media: Arc<PromptMedia>,
    /// Number of tokens of images.
    pub n_tokens: u64,
    /// Reservation for the values of the images, until the request has ended.
    pub memory: Reservation,
}

impl EncodedMedia {
    /// Tokens of the images, in order.
    pub fn spans(&self) -> impl Iterator<Item = ImageSpan> {
        self.media.spans.iter().map(|span| {
            let content = self.media.content_of(span);
            let n_tokens = content.map_or(u64::from(span.len), |content| content.layout().n_features());
            ImageSpan { start: span.start, length: span.len, n_tokens }
        })
    }
}

impl<'m> ConversationImages<'m> {
    /// Decodes and processes the images of a conversation; `None` if it has none. `input` is how the model
    /// takes images, if it does, and `max_tokens` the length of its context.
    ///
    /// # Errors
    /// 400 for an image that is damaged, too large or of a shape that the model does not take, for a URL, and
    /// for any image if the model takes none; 503 without memory.
    pub fn of(
        conversation: &Conversation,
        input: Option<&'m ImageInput>,
        max_tokens: u32,
        memory: &Arc<MemoryBudget>,
        abandoned: &Abandoned,
    ) -> Result<Option<Self>, ApiError> {
        let Some(first) = conversation.images().next() else { return Ok(None) };
        let Some(input) = input else {
            conversation.refuse_images()?;
            return Ok(None);
        };
        if conversation.images().nth(MAX_IMAGES).is_some() {
            return Err(ApiError::array_above_max_length(first.param.clone(), MAX_IMAGES));
        }
        let (mut images, mut n_tokens) = (Vec::new(), 0);
        let mut held = memory.reservation(Part::Prompts);
        for part in conversation.images() {
            abandoned.check()?;
            let image = process(input, part, memory)?;
            held.set(held.n_bytes() + value_bytes(&image)).map_err(memory_full)?;
            // The text of the tokens is made at once: what cannot fit is refused before.
            n_tokens += u64::from(image.n_tokens());
            if n_tokens > u64::from(max_tokens) {
                let n_bytes = n_tokens as usize * input.token_text.len();
                return Err(ApiError::text_too_long(&part.param, n_bytes, max_tokens));
            }
            images.push(image);
        }
        held.set(held.n_bytes() + n_tokens as usize * input.token_text.len()).map_err(memory_full)?;
        Ok(Some(Self { input, images, memory: held }))
    }

    /// Puts the tokens of the images in the places that the template marked.
    ///
    /// # Errors
    /// 400 if it marked more or fewer places.
    pub fn expand(&self, prompt: &mut RenderedPrompt, param: &str) -> Result<(), ApiError> {
        self.input.expand(prompt, &self.images).map_err(|error| misplaced(error, param))
    }

    /// The images at their places among the tokens of the prompt.
    ///
    /// # Errors
    /// 400 if the prompt has another number of their tokens.
    pub fn place(self, tokens: &[TokenId], param: &str) -> Result<EncodedMedia, ApiError> {
        let n_tokens = self.images.iter().map(|image| u64::from(image.n_tokens())).sum();
        let media = self.input.place(self.images, tokens).map_err(|error| misplaced(error, param))?;
        Ok(EncodedMedia { media: Arc::new(media), n_tokens, memory: self.memory })
    }
}

fn process(
    input: &ImageInput,
    part: &ImagePart,
    memory: &Arc<MemoryBudget>,
) -> Result<ProcessedImage, ApiError> {
    let ImageSource::Bytes { bytes, .. } = &part.source else {
        let reason = "This server does not fetch images: send the file itself, as a data URL or in base64.";
        return Err(ApiError::unsupported_parameter(part.param.clone(), reason));
    };
    let unusable =
        |error: throng_images::ImageError| ApiError::unusable_image(part.param.clone(), &error.to_string());
    let header = read_header(bytes, &input.limits).map_err(unusable)?;
    let n_bytes = usize::try_from(header.decode_bytes()).unwrap_or(usize::MAX);
    let _decoding = memory.reserve(Part::Bodies, n_bytes).map_err(memory_full)?;
    input.process(bytes).map_err(unusable)
}

/// Bytes of an image's values, and once more while they are copied into the request.
fn value_bytes(image: &ProcessedImage) -> usize {
    2 * std::mem::size_of_val(image.pixels.as_slice())
}

fn misplaced(_: Misplaced, param: &str) -> ApiError {
    ApiError::invalid_value(param, "The model's chat template does not show each image of this conversation.")
}
