//! Parts of a prompt that are not text: the tokens that represent them, a digest of their content, and the
//! positions of their tokens. Does not know how they are encoded.

mod content;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use content::{ContentDigest, ContentError, ContentLayout, FeatureRun, MediaContent, SpanKind};

/// Prompt tokens that represent content other than text: their ids are placeholders. A span reaches from the
/// first token of its content to the last, with the separators between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PromptSpan {
    /// The first of the tokens.
    pub start: u32,
    /// Number of the tokens, at least one.
    pub len: u32,
    /// Digest of the content that the tokens represent.
    pub digest: ContentDigest,
    /// Kind of the content.
    pub kind: SpanKind,
}

impl PromptSpan {
    /// Position after the last token.
    pub fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.len)
    }
}

/// The position of a token in the three sections of a multimodal rotary embedding (arXiv:2409.12191): time,
/// height, width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RotaryPosition(pub [u32; 3]);

impl RotaryPosition {
    /// The position of a token of text: the same in all sections.
    pub const fn of_text(position: u32) -> Self {
        Self([position; 3])
    }
}

/// Parts of a prompt beside its token ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct PromptMedia {
    /// Spans in increasing order; they do not overlap.
    pub spans: Vec<PromptSpan>,
    /// Position of each prompt token; empty: every token has the position of a token of text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub positions: Vec<RotaryPosition>,
    /// Contents of the spans, each once, found by their digests. They are neither recorded nor part of JSON:
    /// a prompt without them has its names, but cannot be computed.
    #[serde(skip)]
    pub contents: Vec<Arc<MediaContent>>,
}

impl PromptMedia {
    /// The content of a span; `None` if absent.
    pub fn content_of(&self, span: &PromptSpan) -> Option<&Arc<MediaContent>> {
        self.contents.iter().find(|content| content.digest() == span.digest)
    }

    /// Whether every span has its content, with features for tokens of the span only.
    pub fn is_complete(&self) -> bool {
        self.spans.iter().all(|span| {
            self.content_of(span).is_some_and(|content| {
                let layout = content.layout();
                layout.kind == span.kind && layout.n_tokens() <= u64::from(span.len)
            })
        })
    }

    /// The positions of a prompt of `n_prompt` tokens in three sections. Each span with a grid has time,
    /// rows and columns (of its tokens, after merging), counted from the position at which it begins; the
    /// token after it has the position after the largest (arXiv:2409.12191). The spans are in increasing
    /// order and their tokens contiguous.
    pub fn grid_positions(n_prompt: u32, spans: &[(PromptSpan, [u32; 3])]) -> Vec<RotaryPosition> {
        let mut positions = Vec::with_capacity(n_prompt as usize);
        let mut next = 0;
        for (span, [time, rows, columns]) in spans {
            while (positions.len() as u32) < span.start.min(n_prompt) {
                positions.push(RotaryPosition::of_text(next));
                next += 1;
            }
            for idx in 0..span.len {
                let (row, column) = (idx / columns.max(&1) % rows.max(&1), idx % columns.max(&1));
                let frame = idx / (rows * columns).max(1);
                positions.push(RotaryPosition([next + frame, next + row, next + column]));
            }
            next += time.max(rows).max(columns);
        }
        while (positions.len() as u32) < n_prompt {
            positions.push(RotaryPosition::of_text(next));
            next += 1;
        }
        positions
    }

    /// Whether it fits a prompt of `n_prompt` tokens: no rotary position is beyond the last token's own.
    pub fn fits(&self, n_prompt: usize) -> bool {
        let n_positions = self.positions.len();
        let mut end = 0;
        let in_order = self.spans.iter().all(|span| {
            let follows = u64::from(span.start) >= end && span.len > 0;
            end = span.end();
            follows
        });
        let are_within =
            || self.positions.iter().flat_map(|position| position.0).all(|p| (p as usize) < n_prompt);
        in_order && end <= n_prompt as u64 && (n_positions == 0 || (n_positions == n_prompt && are_within()))
    }

    /// The rotary position of the token at `position`. Output tokens follow the largest position of the
    /// prompt.
    pub fn rotary_position(&self, position: u32) -> RotaryPosition {
        if let Some(explicit) = self.positions.get(position as usize) {
            return *explicit;
        }
        let largest = self.positions.iter().flat_map(|position| position.0).max();
        let n_after = position.saturating_sub(self.positions.len() as u32);
        RotaryPosition::of_text(
            largest.map_or(position, |largest| largest.saturating_add(1).saturating_add(n_after)),
        )
    }

    /// The span that the token at `position` is part of.
    pub fn span_at(&self, position: u32) -> Option<&PromptSpan> {
        let n_before = self.spans.partition_point(|span| span.end() <= u64::from(position));
        self.spans.get(n_before).filter(|span| span.start <= position)
    }

    /// The span that is cut where tokens before `position` are separated from those after it.
    pub fn span_cut_at(&self, position: u32) -> Option<&PromptSpan> {
        self.span_at(position).filter(|span| span.start < position)
    }

    /// Whether the spans and positions on which the first `n_tokens` tokens depend are equal.
    pub fn is_equal_before(&self, other: &Self, n_tokens: usize) -> bool {
        let n_spans = |media: &Self| media.spans.partition_point(|span| (span.start as usize) < n_tokens);
        let n_positions = |media: &Self| media.positions.len().min(n_tokens);
        self.spans[..n_spans(self)] == other.spans[..n_spans(other)]
            && self.positions[..n_positions(self)] == other.positions[..n_positions(other)]
    }
}
