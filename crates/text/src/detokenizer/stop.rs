//! Finds stop strings in a stream of text. The first complete one ends the text; text that may be the start
//! of one is held back. Does not know tokens.

use super::Delta;

/// Knuth–Morris–Pratt over bytes, with one automaton for each stop string; each automaton reads each byte
/// once.
#[derive(Debug)]
pub(crate) struct StopMatcher {
    patterns: Vec<Pattern>,
    include_match: bool,
    /// Text held back: the longest suffix that is a prefix of some stop string.
    held: String,
    is_over: bool,
}

#[derive(Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// `failure[i]`: the length of the longest proper prefix of `bytes[..=i]` that is also its suffix.
    failure: Vec<usize>,
    /// The number of bytes of the pattern that the text ends with.
    n_matched: usize,
}

impl Pattern {
    fn new(bytes: Vec<u8>) -> Self {
        let mut failure = vec![0; bytes.len()];
        let mut n_matched = 0;
        for i in 1..bytes.len() {
            while n_matched > 0 && bytes[i] != bytes[n_matched] {
                n_matched = failure[n_matched - 1];
            }
            if bytes[i] == bytes[n_matched] {
                n_matched += 1;
            }
            failure[i] = n_matched;
        }
        Self { bytes, failure, n_matched: 0 }
    }

    /// Processes one byte of text; returns whether the pattern is complete.
    fn step(&mut self, byte: u8) -> bool {
        if self.bytes.is_empty() {
            return false;
        }
        while self.n_matched > 0 && self.bytes[self.n_matched] != byte {
            self.n_matched = self.failure[self.n_matched - 1];
        }
        self.n_matched += usize::from(self.bytes[self.n_matched] == byte);
        self.n_matched == self.bytes.len()
    }
}

impl StopMatcher {
    pub(crate) fn new(stops: Vec<String>, include_match: bool) -> Self {
        let patterns = stops.into_iter().map(|stop| Pattern::new(stop.into_bytes())).collect();
        Self { patterns, include_match, held: String::new(), is_over: false }
    }

    /// Processes more text; returns the text that can be sent, and which stop string was completed.
    pub(crate) fn push(&mut self, text: String) -> Delta {
        if self.is_over {
            return Delta::default();
        }
        if self.patterns.is_empty() {
            return Delta { text, ..Delta::default() };
        }
        let n_before = self.held.len();
        self.held.push_str(&text);
        for (offset, byte) in text.bytes().enumerate() {
            let mut complete: Option<(usize, usize)> = None;
            for (idx, pattern) in self.patterns.iter_mut().enumerate() {
                let n_bytes = pattern.bytes.len();
                if pattern.step(byte) && complete.is_none_or(|(_, longest)| n_bytes > longest) {
                    complete = Some((idx, n_bytes));
                }
            }
            if let Some((idx, n_bytes)) = complete {
                return self.end(idx, n_bytes, n_before + offset + 1);
            }
        }
        let n_held = self.patterns.iter().map(|pattern| pattern.n_matched).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - n_held);
        Delta { text: std::mem::replace(&mut self.held, held), ..Delta::default() }
    }

    fn end(&mut self, stop_idx: usize, n_stop_bytes: usize, end: usize) -> Delta {
        self.is_over = true;
        let mut text = std::mem::take(&mut self.held);
        text.truncate(if self.include_match { end } else { end - n_stop_bytes });
        Delta { text, stopped: Some(stop_idx), marker: None }
    }

    /// Whether a stop string has ended the text.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the held-back text at a point that no stop string can span; matching restarts there.
    pub(crate) fn interrupt(&mut self) -> String {
        self.patterns.iter_mut().for_each(|pattern| pattern.n_matched = 0);
        std::mem::take(&mut self.held)
    }

    /// Returns the held-back text at the end of the stream.
    pub(crate) fn finish(&mut self) -> String {
        self.is_over = true;
        std::mem::take(&mut self.held)
    }
}
