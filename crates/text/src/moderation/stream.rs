//! Filters a stream of text: determines how much can be shown, so that no part of a match is ever shown.
//! Depends on the text alone, not on how it is split. Does not show text.

use std::sync::Arc;

use super::rules::RuleSet;

/// A match that ends the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Index of the rule.
    pub rule: usize,
    /// Start of the match in the text, in bytes.
    pub start: usize,
}

/// Searches for matches in a growing text. The first match is the one that is complete first; among matches
/// complete at the same position, the longest.
#[derive(Debug, Clone)]
pub struct TextFilter {
    rules: Arc<RuleSet>,
    /// The end of the text: the part that may become part of a match, and one character before it.
    buffer: String,
    /// Start of the buffer in the text.
    buffer_start: usize,
    /// End of the text up to which matches have been determined.
    n_decided: usize,
    found: Option<Found>,
}

impl TextFilter {
    /// Starts with the empty text.
    pub fn new(rules: Arc<RuleSet>) -> Self {
        Self { rules, buffer: String::new(), buffer_start: 0, n_decided: 0, found: None }
    }

    /// Appends to the text. Returns the number of bytes, from the start of the text, that can be shown.
    pub fn push(&mut self, text: &str) -> usize {
        if self.found.is_none() {
            self.buffer.push_str(text);
            // A rule's condition on the end of a match may depend on the next character.
            let last = self.buffer.char_indices().next_back().map_or(0, |(start, _)| start);
            self.decide_to(last);
        }
        self.n_shown()
    }

    /// Ends the text. Returns the number of bytes that can be shown.
    pub fn finish(&mut self) -> usize {
        if let Some(found) = self.found {
            return found.start;
        }
        self.decide_to(self.buffer.len());
        self.found.map_or(self.buffer_start + self.buffer.len(), |found| found.start)
    }

    /// The match that ended the text.
    pub fn found(&self) -> Option<Found> {
        self.found
    }

    /// Number of bytes of the text that can be shown while more may follow.
    pub fn n_shown(&self) -> usize {
        if let Some(found) = self.found {
            return found.start;
        }
        // The next match ends after the determined part, so it starts less than its length before that.
        let safe = (self.n_decided + 1).saturating_sub(self.rules.max_match_bytes());
        self.buffer_start + self.buffer.floor_char_boundary(safe.saturating_sub(self.buffer_start))
    }

    /// Looks for a match that ends at most `end` bytes into the buffer.
    fn decide_to(&mut self, end: usize) {
        // Text before it has been searched, except for the context of the first character.
        let start = if self.buffer_start == 0 { 0 } else { self.buffer.ceil_char_boundary(1) };
        if start < end && self.rules.first_between(&self.buffer, start, end).is_some() {
            self.found = Some(self.first_complete(start, end));
            return;
        }
        self.n_decided = self.n_decided.max(self.buffer_start + end);
        self.forget();
    }

    /// The match that is complete first: a match that ends before a position also ends before all later
    /// ones.
    fn first_complete(&self, start: usize, end: usize) -> Found {
        let ends: Vec<usize> =
            self.buffer[start..end].char_indices().map(|(at, c)| start + at + c.len_utf8()).collect();
        let is_before = |end: &usize| self.rules.first_between(&self.buffer, start, *end).is_none();
        let first_end = ends.get(ends.partition_point(is_before)).copied().unwrap_or(end);
        let (rule, at) = self.rules.first_between(&self.buffer, start, first_end).unwrap_or((0, start));
        Found { rule, start: self.buffer_start + at }
    }

    /// Drops text that can no longer be part of a match, except for one character.
    fn forget(&mut self) {
        let n_safe = (self.n_decided + 1).saturating_sub(self.rules.max_match_bytes() + self.buffer_start);
        let safe = self.buffer.floor_char_boundary(n_safe);
        let kept = self.buffer[..safe].char_indices().next_back().map_or(0, |(start, _)| start);
        self.buffer.drain(..kept);
        self.buffer_start += kept;
    }
}
