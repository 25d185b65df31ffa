//! Parts of a prompt that are not text: which tokens stand for them, a digest of their content, and the
//! positions of their tokens. Does not know how they are encoded.

mod content;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use content::{ContentDigest, ContentError, ContentLayout, FeatureRun, MediaContent, SpanKind};

/// Prompt tokens that stand for something else than text: their ids only keep the place. A span reaches from
/// the first token of its content to the last, with the separators between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PromptSpan {
    /// The first of the tokens.
    pub start: u32,
    /// Number of the tokens, at least one.
    pub len: u32,
    /// Digest of the content that they stand for.
    pub digest: ContentDigest,
    /// Kind of the content.
    pub kind: SpanKind,
}

impl PromptSpan {
    /// The token after the last.
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
    /// One for each prompt token; empty: every token has the position of a token of text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub positions: Vec<RotaryPosition>,
    /// Contents of the spans, found by their digests, each once. They are neither recorded nor part of JSON:
    /// without them the prompt has its names, and cannot be computed.
    #[serde(skip)]
    pub contents: Vec<Arc<MediaContent>>,
}

impl PromptMedia {
    /// The content of a span, if it is there.
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

    /// Whether it fits a prompt of so many tokens: no rotary position is beyond the last token's own.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u32, len: u32) -> PromptSpan {
        PromptSpan { start, len, digest: ContentDigest([len as u8; 32]), kind: SpanKind::Image }
    }

    fn media(spans: &[PromptSpan]) -> PromptMedia {
        PromptMedia { spans: spans.to_vec(), ..PromptMedia::default() }
    }

    #[test]
    fn spans_are_in_order_and_within_the_prompt() {
        let fits = |spans: &[PromptSpan]| media(spans).fits(20);
        assert!(fits(&[]) && fits(&[span(0, 20)]) && fits(&[span(1, 4), span(5, 15)]));
        assert!(!fits(&[span(1, 5), span(5, 2)]) && !fits(&[span(5, 2), span(1, 2)]));
        assert!(!fits(&[span(10, 11)]) && !fits(&[span(3, 0)]) && !fits(&[span(u32::MAX, u32::MAX)]));
        let positions =
            |n| PromptMedia { positions: vec![RotaryPosition([0; 3]); n], ..PromptMedia::default() };
        assert!(positions(20).fits(20) && !positions(19).fits(20));
    }

    #[test]
    fn positions_go_on_after_the_largest() {
        let text = media(&[span(0, 2)]);
        assert_eq!(text.rotary_position(7), RotaryPosition([7; 3]));
        let positions = [[0, 0, 0], [1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 2]].map(RotaryPosition).to_vec();
        let image = PromptMedia { spans: vec![span(1, 4)], positions, contents: vec![] };
        assert_eq!(image.rotary_position(2), RotaryPosition([1, 1, 2]));
        assert_eq!(
            [5, 6].map(|position| image.rotary_position(position)),
            [3, 4].map(RotaryPosition::of_text)
        );
    }

    #[test]
    fn positions_of_a_grid_count_rows_and_columns() {
        let positions = PromptMedia::grid_positions(9, &[(span(1, 6), [1, 2, 3])]);
        let numbers: Vec<_> = positions.into_iter().map(|position| position.0).collect();
        let image = [[1, 1, 1], [1, 1, 2], [1, 1, 3], [1, 2, 1], [1, 2, 2], [1, 2, 3]];
        assert_eq!(numbers, [&[[0; 3]], &image[..], &[[4; 3], [5; 3]]].concat());
        let text = PromptMedia::grid_positions(2, &[]);
        assert_eq!(text, [0, 1].map(RotaryPosition::of_text));
    }

    #[test]
    fn a_prompt_is_complete_with_the_contents_of_its_spans() {
        let layout = ContentLayout {
            kind: SpanKind::Image,
            grid: [1, 2, 2],
            shape: vec![1],
            runs: vec![FeatureRun { offset: 0, len: 4 }],
        };
        let content = Arc::new(MediaContent::new(layout, [1.0].into()).expect("valid"));
        let image = |len| PromptSpan { digest: content.digest(), ..span(1, len) };
        let of = |spans: &[PromptSpan]| PromptMedia { contents: vec![content.clone()], ..media(spans) };
        assert!(of(&[image(4)]).is_complete() && of(&[]).is_complete());
        assert!(!of(&[image(3)]).is_complete(), "features behind the span");
        assert!(!of(&[span(1, 4)]).is_complete(), "another content");
        assert!(!media(&[image(4)]).is_complete(), "no content");
    }

    #[test]
    fn a_token_has_at_most_one_span() {
        let two = media(&[span(1, 4), span(5, 2)]);
        let starts: Vec<_> = (0..8).map(|position| two.span_at(position).map(|span| span.start)).collect();
        assert_eq!(starts, [None, Some(1), Some(1), Some(1), Some(1), Some(5), Some(5), None]);
    }

    #[test]
    fn equal_beginnings_are_found() {
        let (one, two) = (media(&[span(1, 4)]), media(&[span(1, 4), span(10, 2)]));
        assert!(one.is_equal_before(&two, 10) && !one.is_equal_before(&two, 11));
        assert!(!one.is_equal_before(&media(&[span(1, 5)]), 2), "an image is seen as a whole");
        let at = |third: u32| PromptMedia {
            positions: [0, 1, third].map(RotaryPosition::of_text).to_vec(),
            ..PromptMedia::default()
        };
        assert!(at(2).is_equal_before(&at(3), 2) && !at(2).is_equal_before(&at(3), 3));
        assert!(!at(2).is_equal_before(&one, 1));
    }
}
