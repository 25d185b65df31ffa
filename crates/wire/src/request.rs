//! Requests of a gateway to a worker: token ids and numbers. Does not know text.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use throng_core::fleet::replica::ResumedContinuation;
use throng_core::prompt_media::{ContentError, ContentLayout, MediaContent, PromptMedia};
use throng_core::request::{CacheMark, Priority, SamplingParams, TenantId, TokenId};

use crate::{Constraint, Holder, MAX_CONTENT_BYTES};

/// Request for continuations of a prompt: the first line of the body.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Generate {
    /// Tenant of the request.
    pub tenant: TenantId,
    /// Further separates cached prefixes within the tenant.
    pub cache_salt: Option<Arc<str>>,
    /// Prefixes that the client asks to keep cached. A worker of an older version keeps none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cache_marks: Vec<CacheMark>,
    /// Priority among the tenant's requests.
    pub priority: Priority,
    /// Tokens of the prompt.
    pub prompt: Arc<[TokenId]>,
    /// Parts of the prompt beside its tokens; absent for text only. Sent only to workers whose
    /// [`Description`](crate::Description) permits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub media: Option<Arc<PromptMedia>>,
    /// Contents of the media, each once: their pixel values follow the line, see [`content_bytes`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<ContentLayout>,
    /// Parameters of sampling and of the ends of continuations.
    pub sampling: Arc<SamplingParams>,
    /// Constraint on the outputs.
    pub constraint: Option<Constraint>,
    /// Name of the adapter to apply to the model's weights.
    pub adapter: Option<String>,
    /// Number of continuations; ignored for a resumed request.
    pub n: u32,
    /// Continuations to resume; empty for a new request.
    pub resumed: Vec<ResumedContinuation>,
    /// Another worker that has more of the prompt in its cache than this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
}

/// A later line of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// A continuation needs no more tokens.
    Abort {
        /// Index of the continuation.
        index: u32,
    },
    /// A command of a newer gateway, which is ignored.
    #[serde(other)]
    Unknown,
}

impl Generate {
    /// Number of bytes of pixel values that follow the line.
    ///
    /// # Errors
    /// When they are more than a request may have.
    pub fn n_content_bytes(&self) -> Result<usize, ContentsTooLarge> {
        let of = |layout: &ContentLayout| layout.n_values()?.checked_mul(size_of::<f32>());
        let sum = self.contents.iter().try_fold(0_usize, |sum, layout| sum.checked_add(of(layout)?));
        sum.filter(|&n| n <= MAX_CONTENT_BYTES).ok_or(ContentsTooLarge)
    }

    /// Adds to the media the contents whose pixel values followed the line. Digests are computed, not taken
    /// from the message: a span whose digest no content has stays without one.
    ///
    /// # Errors
    /// When the number of bytes does not match the layouts.
    pub fn take_contents(&mut self, mut bytes: &[u8]) -> Result<(), ContentError> {
        let mut contents = Vec::new();
        for layout in std::mem::take(&mut self.contents) {
            let n_values = bytes.len() / size_of::<f32>();
            let n_bytes = layout.n_values().and_then(|n| n.checked_mul(size_of::<f32>()));
            let of_content = n_bytes.and_then(|n| bytes.split_off(..n));
            let of_content = of_content.ok_or(ContentError::OtherShape { n_values })?;
            let values = of_content.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value));
            contents.push(Arc::new(MediaContent::new(layout, values.collect())?));
        }
        if let Some(media) = &mut self.media {
            Arc::make_mut(media).contents = contents;
        }
        Ok(())
    }
}

/// The contents of a request have more bytes than [`MAX_CONTENT_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("pictures of more than {MAX_CONTENT_BYTES} bytes of pixel values")]
pub struct ContentsTooLarge;

/// Bytes of a content's pixel values `first..first + n`, as they follow the line of a [`Generate`]: 32-bit
/// floats, little-endian.
pub fn content_bytes(content: &MediaContent, first: usize, n: usize) -> Vec<u8> {
    let pixels = content.pixels();
    let end = first.saturating_add(n).min(pixels.len());
    pixels[first.min(end)..end].iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use throng_core::prompt_media::{FeatureRun, PromptSpan, SpanKind};

    use super::*;

    fn content(n: u32) -> MediaContent {
        let runs = vec![FeatureRun { offset: 0, len: 2 }];
        let layout = ContentLayout { kind: SpanKind::Image, grid: [1, 1, n], shape: vec![n, 3], runs };
        MediaContent::new(layout, (0..3 * n).map(|i| i as f32 * 0.7 - 1.0).collect()).expect("valid")
    }

    fn request(contents: &[MediaContent]) -> Generate {
        let span = |(i, content): (usize, &MediaContent)| PromptSpan {
            start: 2 * i as u32,
            len: 2,
            digest: content.digest(),
            kind: SpanKind::Image,
        };
        let media =
            PromptMedia { spans: contents.iter().enumerate().map(span).collect(), ..PromptMedia::default() };
        let contents = contents.iter().map(|content| content.layout().clone()).collect();
        Generate { media: Some(media.into()), contents, ..Generate::default() }
    }

    #[test]
    fn pixel_values_come_back_to_the_bit() {
        let contents = [content(5), content(2)];
        let line = serde_json::to_string(&request(&contents)).expect("a line");
        let mut received: Generate = serde_json::from_str(&line).expect("a request");
        let pieces = |content: &MediaContent| (0..4).flat_map(|i| content_bytes(content, i * 4, 4)).collect();
        let bytes: Vec<Vec<u8>> = contents.iter().map(pieces).collect();
        let bytes = bytes.concat();
        assert_eq!(received.n_content_bytes(), Ok(bytes.len()));
        received.take_contents(&bytes).expect("they fit");
        let media = received.media.expect("media");
        assert!(media.is_complete());
        for (received, sent) in media.contents.iter().zip(&contents) {
            assert_eq!((received.digest(), received.pixels()), (sent.digest(), sent.pixels()));
        }
    }

    #[test]
    fn numbers_that_are_too_few_or_too_many_are_refused() {
        let contents = [content(5)];
        let mut short = request(&contents);
        let bytes = content_bytes(&contents[0], 0, 14);
        assert_eq!(short.take_contents(&bytes), Err(ContentError::OtherShape { n_values: 14 }));
        let mut huge = request(&contents);
        huge.contents[0].shape = vec![u32::MAX; 4];
        assert_eq!(huge.n_content_bytes(), Err(ContentsTooLarge));
        huge.contents[0].shape = vec![1 << 20, 1 << 10];
        assert_eq!(huge.n_content_bytes(), Err(ContentsTooLarge));
    }

    #[test]
    fn a_changed_picture_is_another_one() {
        let contents = [content(5)];
        let mut received = request(&contents);
        let mut bytes = content_bytes(&contents[0], 0, usize::MAX);
        bytes[3] ^= 1;
        received.take_contents(&bytes).expect("they fit");
        assert!(!received.media.expect("media").is_complete());
    }
}
