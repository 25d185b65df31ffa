//! Content of a span: the numbers that its encoder reads. Does not know files, decoders of pictures and
//! models.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// SHA-256 of the content that a span represents, as the encoder reads it: equal digests mean equal
/// embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContentDigest(pub [u8; 32]);

/// Kind of a span's content. An unknown kind is an error: an image must not be skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    /// A still image.
    Image,
    /// Frames of a video.
    Video,
    /// A sound, encoded for the model.
    Audio,
}

/// Tokens of a span that represent features, without separators between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FeatureRun {
    /// Distance of the first of the tokens from the start of the span.
    pub offset: u32,
    /// Number of the tokens, at least one.
    pub len: u32,
}

/// Description of a content beside its pixel values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContentLayout {
    /// Kind of the content.
    pub kind: SpanKind,
    /// Patches before merging: time, rows, columns. For tiles: 1 (or the number of tiles where all have one
    /// size), rows and columns of the patches of one tile.
    pub grid: [u32; 3],
    /// Dimensions of the pixel values, the slowest first, as the model's processor returns them.
    pub shape: Vec<u32>,
    /// Tokens that represent features, in increasing order, without overlap.
    pub runs: Vec<FeatureRun>,
}

/// Content of a span of a prompt: the pixel values that the encoder reads. Equality is that of digests.
#[derive(Clone)]
pub struct MediaContent {
    digest: ContentDigest,
    layout: ContentLayout,
    pixels: Arc<[f32]>,
}

/// Reason why numbers are no content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// The shape has another number of values.
    #[error("{n_values} pixel values do not have the shape that is given")]
    OtherShape {
        /// Number of values.
        n_values: usize,
    },
    /// A run is empty, or begins before the end of the one before it.
    #[error("the tokens of a picture are not in order")]
    UnorderedRuns,
    /// A value is infinite or no number.
    #[error("a pixel value is not finite")]
    NotFinite,
}

impl ContentLayout {
    /// Number of pixel values; `None` if it exceeds `usize`.
    pub fn n_values(&self) -> Option<usize> {
        self.shape.iter().try_fold(1_usize, |product, &side| product.checked_mul(side as usize))
    }

    /// Number of tokens that represent features.
    pub fn n_features(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.len)).sum()
    }

    /// Number of tokens from the start of the span to the last feature.
    pub fn n_tokens(&self) -> u64 {
        self.runs.last().map_or(0, |run| u64::from(run.offset) + u64::from(run.len))
    }

    /// Index of the feature that the token at `offset` from the start of the span represents; `None` for
    /// separators.
    pub fn feature_at(&self, offset: u32) -> Option<usize> {
        let mut n_before = 0;
        for run in &self.runs {
            if offset < run.offset {
                return None;
            }
            if offset - run.offset < run.len {
                return Some(n_before + (offset - run.offset) as usize);
            }
            n_before += run.len as usize;
        }
        None
    }

    fn check(&self, pixels: &[f32]) -> Result<(), ContentError> {
        if self.n_values() != Some(pixels.len()) {
            return Err(ContentError::OtherShape { n_values: pixels.len() });
        }
        let mut end = 0;
        for run in &self.runs {
            if u64::from(run.offset) < end || run.len == 0 {
                return Err(ContentError::UnorderedRuns);
            }
            end = u64::from(run.offset) + u64::from(run.len);
        }
        if pixels.iter().all(|value| value.is_finite()) { Ok(()) } else { Err(ContentError::NotFinite) }
    }
}

impl MediaContent {
    /// Creates a content and computes its digest.
    ///
    /// # Errors
    /// When the values do not have the shape, the runs are not in order, or a value is not finite.
    pub fn new(layout: ContentLayout, pixels: Arc<[f32]>) -> Result<Self, ContentError> {
        layout.check(&pixels)?;
        let mut hasher = Sha256::new_with_prefix(b"throng content");
        hasher.update([layout.kind as u8]);
        layout.grid.iter().for_each(|side| hasher.update(side.to_le_bytes()));
        hasher.update((layout.shape.len() as u64).to_le_bytes());
        layout.shape.iter().for_each(|side| hasher.update(side.to_le_bytes()));
        hasher.update((layout.runs.len() as u64).to_le_bytes());
        for run in &layout.runs {
            hasher.update(run.offset.to_le_bytes());
            hasher.update(run.len.to_le_bytes());
        }
        let mut bytes = [0_u8; 4 * 1024];
        for values in pixels.chunks(1024) {
            for (bytes, value) in bytes.chunks_exact_mut(4).zip(values) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
            hasher.update(&bytes[..4 * values.len()]);
        }
        Ok(Self { digest: ContentDigest(hasher.finalize().into()), layout, pixels })
    }

    /// Digest of the layout and the pixel values.
    pub fn digest(&self) -> ContentDigest {
        self.digest
    }

    /// Description of the content.
    pub fn layout(&self) -> &ContentLayout {
        &self.layout
    }

    /// Pixel values in the shape of the layout.
    pub fn pixels(&self) -> &Arc<[f32]> {
        &self.pixels
    }

    /// Bytes of the pixel values.
    pub fn n_bytes(&self) -> usize {
        size_of_val(&*self.pixels)
    }
}

impl fmt::Debug for MediaContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MediaContent").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl PartialEq for MediaContent {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for MediaContent {}

impl std::hash::Hash for MediaContent {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}
