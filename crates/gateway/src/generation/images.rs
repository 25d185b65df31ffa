//! Images of a conversation: files to the values of the model's encoder, and their places in the prompt. Runs in
//! the turns of tokenization, off the socket threads. Does not know templates.

use std::sync::Arc;

use throng_api::ApiError;
use throng_api::spec::{Conversation, ImagePart, ImageSource, MAX_IMAGES};
use throng_core::prompt_media::{
    ContentLayout, FeatureRun, MediaContent, PromptMedia, PromptSpan, SpanKind,
};
use throng_core::request::TokenId;
use throng_http::memory::{MemoryBudget, Part, Reservation};
use throng_images::{Piece, ProcessedImage, decode, read_header};

use super::work::Abandoned;
use crate::image_input::ImageInput;
use crate::rejection::memory_full;

/// Images of a conversation, in order, processed.
#[derive(Debug)]
pub(super) struct ConversationImages<'m> {
    input: &'m ImageInput,
    images: Vec<ProcessedImage>,
    /// For their values.
    memory: Reservation,
}

/// What a prompt has beside its tokens.
#[derive(Debug)]
pub(crate) struct EncodedMedia {
    /// Spans, positions and contents.
    pub media: Arc<PromptMedia>,
    /// Number of tokens of images.
    pub n_tokens: u64,
    /// For the values of the images, until the request has ended.
    pub memory: Reservation,
}

impl<'m> ConversationImages<'m> {
    /// Decodes and processes the images of a conversation; `None` if it has none. `input` is how the model takes
    /// images, if it does.
    ///
    /// # Errors
    /// 400 for an image that is damaged, too large or of a shape that the model does not take, for a URL, and for
    /// any image if the model takes none; 503 without memory.
    pub fn of(
        conversation: &Conversation,
        input: Option<&'m ImageInput>,
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
        let mut images = Vec::new();
        let mut held = memory.reservation(Part::Prompts);
        for part in conversation.images() {
            abandoned.check()?;
            let image = process(input, part, memory)?;
            held.set(held.n_bytes() + value_bytes(&image)).map_err(memory_full)?;
            images.push(image);
        }
        Ok(Some(Self { input, images, memory: held }))
    }

    /// The text with which the template marks an image.
    pub fn marker(&self) -> &'m str {
        &self.input.marker
    }

    /// The text of each image in the prompt.
    pub fn texts(&self) -> Vec<String> {
        let text = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone().into_owned(),
            Piece::Tokens(n) => self.input.token_text.repeat(*n as usize),
        };
        self.images.iter().map(|image| image.pieces.iter().map(text).collect()).collect()
    }

    /// The images at their places among the tokens of the prompt.
    ///
    /// # Errors
    /// 400 if the prompt has another number of their tokens: the template left an image out or moved it.
    pub fn place(self, tokens: &[TokenId], param: &str) -> Result<EncodedMedia, ApiError> {
        let places: Vec<u32> = tokens
            .iter()
            .enumerate()
            .filter(|(_, token)| **token == self.input.token)
            .map(|(place, _)| place as u32)
            .collect();
        let n_tokens: u64 = self.images.iter().map(|image| u64::from(image.n_tokens())).sum();
        if places.len() as u64 != n_tokens {
            return Err(misplaced(param));
        }
        let (mut spans, mut contents) = (Vec::new(), Vec::<Arc<MediaContent>>::new());
        let mut grids = Vec::new();
        let mut places = places.as_slice();
        for image in self.images {
            let (own, rest) = places.split_at(image.n_tokens() as usize);
            places = rest;
            let (Some(first), Some(last)) = (own.first(), own.last()) else { return Err(misplaced(param)) };
            let (grid, len) = (image.rotary_grid, last - first + 1);
            let content = content_of(image, own).ok_or_else(|| misplaced(param))?;
            let digest = content.digest();
            let span = PromptSpan { start: *first, len, digest, kind: SpanKind::Image };
            grids.extend(grid.map(|[rows, columns]| (span, [1, rows, columns])));
            spans.push(span);
            if contents.iter().all(|known| known.digest() != digest) {
                contents.push(Arc::new(content));
            }
        }
        let n_prompt = u32::try_from(tokens.len()).map_err(|_| misplaced(param))?;
        let has_grids = !grids.is_empty();
        let positions = if has_grids { PromptMedia::grid_positions(n_prompt, &grids) } else { Vec::new() };
        let media = Arc::new(PromptMedia { spans, positions, contents });
        Ok(EncodedMedia { media, n_tokens, memory: self.memory })
    }
}

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

fn process(input: &ImageInput, part: &ImagePart, memory: &Arc<MemoryBudget>) -> Result<ProcessedImage, ApiError> {
    let bytes = match &part.source {
        ImageSource::Bytes { bytes, .. } => bytes,
        ImageSource::Url(_) => {
            let reason = "This server does not fetch images: send the file itself, as a data URL or in base64.";
            return Err(ApiError::unsupported_parameter(part.param.clone(), reason));
        }
    };
    let unusable = |error: throng_images::ImageError| ApiError::unusable_image(part.param.clone(), &error.to_string());
    let header = read_header(bytes, &input.limits).map_err(unusable)?;
    let n_bytes = usize::try_from(header.decode_bytes()).unwrap_or(usize::MAX);
    let _decoding = memory.reserve(Part::Bodies, n_bytes).map_err(memory_full)?;
    let image = decode(bytes, &input.limits).map_err(unusable)?;
    input.processor.process(&image).map_err(unusable)
}

/// Bytes of an image's values, and once more while they are copied into the request.
fn value_bytes(image: &ProcessedImage) -> usize {
    2 * std::mem::size_of_val(image.pixels.as_slice())
}

/// Error for a prompt that does not show each image once.
pub(super) fn misplaced(param: &str) -> ApiError {
    ApiError::invalid_value(param, "The model's chat template does not show each image of this conversation.")
}
