//! Progress of a running sequence with the features of its prompt's pictures. Does not know the room in a
//! step.

use super::{Running, Sequence};
use crate::scheduling::batch::WorkShare;

/// Progress with the pictures of a prompt, in the order of their spans.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Encodings {
    /// Number of spans, from the first on, whose features are there or not needed.
    n_ready: usize,
    /// Number of parts of the work on the next span that steps were given.
    n_asked: u32,
    /// Further parts of the work in the planned step.
    n_scheduled: u32,
}

/// A picture whose features are needed and not ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NeededEncoding {
    /// Index of its span.
    pub span_idx: usize,
    /// The first token of the span.
    pub start: usize,
    /// Number of parts of the work that no step was given.
    pub n_left: u32,
}

/// Work on a picture in the planned step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AskedEncoding {
    pub span_idx: usize,
    pub n_before: u32,
    pub share: WorkShare,
}

impl Sequence<Running> {
    /// The first picture whose features tokens `start..end` need and that are not ready.
    pub(crate) fn needed_encoding(&mut self, start: usize, end: usize) -> Option<NeededEncoding> {
        let media = self.request.media.as_ref()?;
        let own = &mut self.state.encodings;
        while let Some(span) = media.spans.get(own.n_ready) {
            if span.end() > start as u64 {
                let n_left = span.len - own.n_asked;
                let (span_idx, span_start) = (own.n_ready, span.start as usize);
                return (span_start < end).then_some(NeededEncoding { span_idx, start: span_start, n_left });
            }
            *own = Encodings { n_ready: own.n_ready + 1, ..Encodings::default() };
        }
        None
    }

    /// The end of the tokens up to `end` that need no picture behind this one.
    pub(crate) fn needed_after(&self, needed: NeededEncoding, end: usize) -> usize {
        let next = self.request.media.as_ref().and_then(|media| media.spans.get(needed.span_idx + 1));
        next.map_or(end, |span| end.min(span.start as usize))
    }

    /// Whether the planned step works on one of its pictures.
    pub(crate) fn encodes(&self) -> bool {
        self.state.encodings.n_scheduled > 0
    }

    /// Adds this number of parts of the work on the next needed picture to the planned step.
    pub(crate) fn schedule_encoding(&mut self, n_parts: u32) {
        self.state.encodings.n_scheduled = n_parts;
    }

    /// Takes the planned step's work on a picture and counts it as done.
    pub(crate) fn take_encoding(&mut self) -> Option<AskedEncoding> {
        let media = self.request.media.as_ref()?;
        let own = &mut self.state.encodings;
        let n_scheduled = std::mem::take(&mut own.n_scheduled);
        let span = media.spans.get(own.n_ready).filter(|_| n_scheduled > 0)?;
        let (span_idx, n_before) = (own.n_ready, own.n_asked);
        let share = WorkShare { done: n_before + n_scheduled, all: span.len };
        own.n_asked = share.done;
        if share.is_whole() {
            self.note_encoded(span_idx);
        }
        Some(AskedEncoding { span_idx, n_before, share })
    }

    /// Notes that the features of a span are ready, or will be before any later step's tokens.
    pub(crate) fn note_encoded(&mut self, span_idx: usize) {
        if self.state.encodings.n_ready == span_idx {
            self.state.encodings = Encodings { n_ready: span_idx + 1, ..Encodings::default() };
        }
    }
}
