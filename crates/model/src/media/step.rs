//! The features of a step: encodes the pictures that its tokens represent, unless their features are cached.
//! Does not know the forward pass.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use throng_core::prompt_media::{MediaContent, PromptSpan};
use throng_core::scheduling::batch::{MediaCounts, ScheduledBatch, ScheduledSequence, WorkShare};
use throng_core::time::Nanos;

use super::cache::{FeatureCache, FeatureKey};
use super::{EncodeError, Features, MediaEncoder, MediaEncoding};
use crate::backend::BackendError;
use crate::batch_input::{BatchInput, FeatureRows};

/// Maximum bytes of kept features, beyond those of the steps in flight.
const MAX_FEATURE_BYTES: usize = 256 << 20;

/// Maximum number of pictures that are begun and not done, as many as a step works on. The least recently
/// worked one is dropped for a further one, and is begun again when it is needed.
const MAX_BEGUN: usize = 4;

/// An encoder with the features that it made.
pub(crate) struct MediaReader {
    encoder: Box<dyn MediaEncoder>,
    cache: FeatureCache,
    /// Pictures that are begun and not done, the one worked on last at the end.
    begun: VecDeque<BegunEncoding>,
    /// Number of elements of a feature.
    width: usize,
    /// Number of layers of the decoder, behind which features may be added.
    n_layers: usize,
    /// Id of the tokens that features replace, if the decoder also looks it up.
    placeholder_token: u32,
    /// Counts of the step's pictures.
    counts: MediaCounts,
}

/// A picture that is begun.
struct BegunEncoding {
    key: FeatureKey,
    encoding: Box<dyn MediaEncoding>,
    /// Number of parts that are done.
    n_done: u32,
}

/// Features computed so far.
enum Made {
    All(Arc<Features>),
    /// There are none of this content.
    Never,
    NotYet,
}

/// A content and its features.
type EncodedContent = (Arc<MediaContent>, Arc<Features>);

impl MediaReader {
    /// Creates a reader for a decoder of `n_layers` layers, whose residual stream has this width.
    pub(crate) fn new(
        encoder: Box<dyn MediaEncoder>,
        width: usize,
        n_layers: usize,
        placeholder_token: u32,
    ) -> Self {
        let (cache, begun) = (FeatureCache::new(MAX_FEATURE_BYTES), VecDeque::new());
        Self { encoder, cache, begun, width, n_layers, placeholder_token, counts: MediaCounts::default() }
    }

    /// Does a step's work on pictures.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn encode(&mut self, batch: &ScheduledBatch) -> Result<(), BackendError> {
        self.counts = MediaCounts::default();
        for (idx, scheduled) in batch.encodings().iter().enumerate() {
            let span = scheduled.span();
            let Some(content) = scheduled.media.content_of(span).filter(|content| fits(content, span)) else {
                self.counts.note_done(idx);
                continue;
            };
            let key = FeatureKey { scope: scheduled.media_scope, digest: content.digest() };
            let is_known = self.cache.has(&key);
            self.counts.n_known += u32::from(is_known && scheduled.n_before == 0);
            if is_known || !matches!(self.work_on(content, key, scheduled.share)?, Made::NotYet) {
                self.counts.note_done(idx);
            }
        }
        Ok(())
    }

    /// Adds to a step's input the features of its tokens, after [`Self::encode`]. `failed` gets the sequences
    /// whose pictures are missing or unreadable.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn read(
        &mut self,
        batch: &ScheduledBatch,
        input: &mut BatchInput,
        failed: &mut Vec<usize>,
    ) -> Result<MediaCounts, BackendError> {
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

    /// The content of a span with its features; `None` if missing or unreadable.
    fn features_of(
        &mut self,
        scheduled: &ScheduledSequence,
        span: &PromptSpan,
    ) -> Result<Option<EncodedContent>, BackendError> {
        let content = scheduled.media.as_ref().and_then(|media| media.content_of(span));
        let Some(content) = content.filter(|content| fits(content, span)) else { return Ok(None) };
        let key = FeatureKey { scope: scheduled.media_scope, digest: content.digest() };
        let whole = WorkShare { done: span.len, all: span.len };
        Ok(match self.work_on(content, key, whole)? {
            Made::All(features) => Some((Arc::clone(content), features)),
            Made::Never | Made::NotYet => None,
        })
    }

    /// Runs this share of the work on a content.
    fn work_on(
        &mut self,
        content: &Arc<MediaContent>,
        key: FeatureKey,
        share: WorkShare,
    ) -> Result<Made, BackendError> {
        if let Some(features) = self.cache.get(&key) {
            return Ok(Made::All(features));
        }
        let started = Instant::now();
        let worked = self.advance(content, key, share);
        self.counts.took.0 += Nanos::from(started.elapsed()).0;
        let features = match worked {
            Ok(None) => return Ok(Made::NotYet),
            Ok(Some(features)) => features,
            Err(EncodeError::Backend(error)) => return Err(error),
            Err(EncodeError::Weights(error)) => return Err(BackendError::Device(error.to_string())),
            Err(EncodeError::Unreadable(reason)) => {
                tracing::warn!("a picture is not read: {reason}");
                return Ok(Made::Never);
            }
        };
        let is_as_asked = features.is_whole()
            && features.width == self.width
            && features.n_rows() as u64 == content.layout().n_features()
            && features.deepstack.len() <= self.n_layers;
        if !is_as_asked {
            tracing::warn!(
                "a picture has {} features of {} elements for {} tokens",
                features.n_rows(),
                features.width,
                content.layout().n_features()
            );
            return Ok(Made::Never);
        }
        self.counts.n_encoded += 1;
        let features = Arc::new(features);
        self.cache.insert(key, Arc::clone(&features));
        Ok(Made::All(features))
    }

    /// Continues or begins the work on a content.
    fn advance(
        &mut self,
        content: &MediaContent,
        key: FeatureKey,
        share: WorkShare,
    ) -> Result<Option<Features>, EncodeError> {
        let known = self.begun.iter().position(|begun| begun.key == key);
        let mut begun = match known.and_then(|idx| self.begun.remove(idx)) {
            Some(begun) => begun,
            None => BegunEncoding { key, encoding: self.encoder.begin(content)?, n_done: 0 },
        };
        if let Some(features) = begun.encoding.advance(share)? {
            self.counts.n_parts += share.done.saturating_sub(begun.n_done);
            return Ok(Some(features));
        }
        self.counts.n_parts += share.done.saturating_sub(begun.n_done);
        begun.n_done = begun.n_done.max(share.done);
        if self.begun.len() == MAX_BEGUN {
            self.begun.pop_front();
        }
        self.begun.push_back(begun);
        Ok(None)
    }

    /// Writes the features of a span's new tokens of the sequence to their rows.
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

/// Whether a span has room for the tokens of a content.
fn fits(content: &MediaContent, span: &PromptSpan) -> bool {
    content.layout().n_tokens() <= u64::from(span.len)
}
