//! The features of a step: encodes the pictures that its tokens stand for, unless they are known. Does not
//! know the forward pass.

use std::sync::Arc;
use std::time::Instant;

use throng_core::prompt_media::{MediaContent, PromptSpan};
use throng_core::scheduling::batch::{MediaCounts, ScheduledBatch, ScheduledSequence};
use throng_core::time::Nanos;

use super::cache::{FeatureCache, FeatureKey};
use super::{EncodeError, Features, MediaEncoder};
use crate::backend::BackendError;
use crate::batch_input::{BatchInput, FeatureRows};

/// Most bytes of kept features, beyond those of the steps in flight.
const MAX_FEATURE_BYTES: usize = 256 << 20;

/// An encoder with the features that it made.
pub(crate) struct MediaReader {
    encoder: Box<dyn MediaEncoder>,
    cache: FeatureCache,
    /// Elements of a feature.
    width: usize,
    /// Number of layers of the decoder, behind which features may be added.
    n_layers: usize,
    /// Id of the tokens that features stand in place of, where the decoder looks them up besides.
    placeholder_token: u32,
    /// Pictures of the step.
    counts: MediaCounts,
}

/// A content and its features.
type EncodedContent = (Arc<MediaContent>, Arc<Features>);

impl MediaReader {
    /// Creates a reader for a decoder of so many layers, whose residual stream has this width.
    pub(crate) fn new(
        encoder: Box<dyn MediaEncoder>,
        width: usize,
        n_layers: usize,
        placeholder_token: u32,
    ) -> Self {
        let cache = FeatureCache::new(MAX_FEATURE_BYTES);
        Self { encoder, cache, width, n_layers, placeholder_token, counts: MediaCounts::default() }
    }

    /// Adds to a step's input the features of its tokens. `failed` gets the sequences whose pictures are not
    /// there or cannot be read.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn read(
        &mut self,
        batch: &ScheduledBatch,
        input: &mut BatchInput,
        failed: &mut Vec<usize>,
    ) -> Result<MediaCounts, BackendError> {
        self.counts = MediaCounts::default();
        for (sequence_idx, scheduled) in batch.sequences().iter().enumerate() {
            let first_row = input.spans[sequence_idx].first_row;
            let (start, end) =
                (u64::from(scheduled.start), u64::from(scheduled.start) + scheduled.n_tokens() as u64);
            let spans = scheduled.media.iter().flat_map(|media| &media.spans);
            for span in spans.filter(|span| u64::from(span.start) < end && span.end() > start) {
                match self.features_of(scheduled, span)? {
                    Some((content, features)) => {
                        self.place(&content, &features, (scheduled, span), first_row, input);
                    }
                    None if failed.last() == Some(&sequence_idx) => {}
                    None => failed.push(sequence_idx),
                }
            }
        }
        Ok(self.counts)
    }

    /// The content of a span with its features; none where it is not there or cannot be read.
    fn features_of(
        &mut self,
        scheduled: &ScheduledSequence,
        span: &PromptSpan,
    ) -> Result<Option<EncodedContent>, BackendError> {
        let content = scheduled.media.as_ref().and_then(|media| media.content_of(span));
        let Some(content) = content.filter(|content| content.layout().n_tokens() <= u64::from(span.len))
        else {
            return Ok(None);
        };
        let key = FeatureKey { scope: scheduled.media_scope, digest: content.digest() };
        if let Some(features) = self.cache.get(&key) {
            // Later chunks of a picture are no further uses.
            self.counts.n_known += u32::from(scheduled.start <= span.start);
            return Ok(Some((Arc::clone(content), features)));
        }
        let begun = Instant::now();
        let encoded = self.encoder.encode(content);
        self.counts.took.0 += Nanos::from(begun.elapsed()).0;
        let features = match encoded {
            Ok(features) => features,
            Err(EncodeError::Backend(error)) => return Err(error),
            Err(EncodeError::Weights(error)) => return Err(BackendError::Device(error.to_string())),
            Err(EncodeError::Unreadable(reason)) => {
                tracing::warn!("a picture is not read: {reason}");
                return Ok(None);
            }
        };
        let fits = features.is_whole()
            && features.width == self.width
            && features.n_rows() as u64 == content.layout().n_features()
            && features.deepstack.len() <= self.n_layers;
        if !fits {
            tracing::warn!(
                "a picture has {} features of {} elements for {} tokens",
                features.n_rows(),
                features.width,
                content.layout().n_features()
            );
            return Ok(None);
        }
        self.counts.n_encoded += 1;
        let features = Arc::new(features);
        self.cache.insert(key, Arc::clone(&features));
        Ok(Some((Arc::clone(content), features)))
    }

    /// Puts the features of those tokens of a span that are the sequence's new ones in their places.
    fn place(
        &self,
        content: &MediaContent,
        features: &Arc<Features>,
        (scheduled, span): (&ScheduledSequence, &PromptSpan),
        first_row: usize,
        input: &mut BatchInput,
    ) {
        let (start, end) = (scheduled.start as usize, scheduled.start as usize + scheduled.n_tokens());
        let mut n_before = 0;
        for run in &content.layout().runs {
            let first = (span.start + run.offset) as usize;
            let tokens = first.max(start)..(first + run.len as usize).min(end);
            if !tokens.is_empty() {
                let rows = first_row + tokens.start - start..first_row + tokens.end - start;
                input.tokens[rows.clone()].fill(self.placeholder_token);
                input.features.push(FeatureRows {
                    first_row: rows.start,
                    n_rows: rows.len(),
                    features: Arc::clone(features),
                    first_feature: n_before + tokens.start - first,
                });
            }
            n_before += run.len as usize;
        }
    }
}
