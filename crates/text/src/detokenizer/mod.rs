//! Converts tokens to text, one at a time: only whole characters, and no text that may be the start of a
//! stop string. Does not know other reasons for the end of a generation.

mod stop;
mod utf8;

use std::sync::Arc;

use crate::tokenizer::{PieceJoiner, Tokenizer};
use stop::StopMatcher;
use utf8::Utf8Stream;

/// Options for detokenizing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetokenizeOptions {
    /// Whether to leave control tokens out of the text.
    pub skip_special_tokens: bool,
    /// Accepted for compatibility: no tokenizer of Throng inserts these spaces.
    pub spaces_between_special_tokens: bool,
    /// Strings that end the text. Empty ones never match.
    pub stop: Vec<String>,
    /// Whether to keep the stop string at the end of the text.
    pub include_stop_str_in_output: bool,
    /// Control tokens to report in [`Delta::marker`], whether or not control tokens are left out of the
    /// text.
    pub markers: Vec<u32>,
    /// Whether the text continues a prompt (`/v1/completions`), so that a SentencePiece tokenizer's first
    /// space stays; `false` starts a separate text, as `Tokenizer::decode` does.
    pub continues_prompt: bool,
}

impl Default for DetokenizeOptions {
    fn default() -> Self {
        Self {
            skip_special_tokens: true,
            spaces_between_special_tokens: true,
            stop: Vec::new(),
            include_stop_str_in_output: false,
            markers: Vec::new(),
            continues_prompt: false,
        }
    }
}

/// Text completed by one token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delta {
    /// Text to append; often empty, while a character or a possible stop string is incomplete.
    pub text: String,
    /// The token itself, if it is one of [`DetokenizeOptions::markers`]. It comes after `text`, and no stop
    /// string spans it.
    pub marker: Option<u32>,
    /// The index of the stop string that ended the text. The sequence is over: later tokens are ignored.
    pub stopped: Option<usize>,
}

/// Converts one sequence's tokens to text as they arrive. Except for markers, the concatenated deltas,
/// including [`Self::finish`], equal `Tokenizer::decode` of all tokens, cut at the first completed stop
/// string (of two completed at once, the longer). Time and memory for a token do not grow with the
/// sequence.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    joiner: PieceJoiner,
    bytes: Vec<u8>,
    utf8: Utf8Stream,
    stops: StopMatcher,
    markers: Vec<u32>,
}

impl Detokenizer {
    /// Creates a detokenizer for one sequence.
    pub fn new(tokenizer: Arc<Tokenizer>, options: DetokenizeOptions) -> Self {
        let joiner =
            PieceJoiner::new(tokenizer.pieces(), options.skip_special_tokens, options.continues_prompt);
        let stops = StopMatcher::new(options.stop, options.include_stop_str_in_output);
        let markers = options.markers;
        Self { tokenizer, joiner, bytes: Vec::new(), utf8: Utf8Stream::default(), stops, markers }
    }

    /// The text that `token` completes.
    pub fn push(&mut self, token: u32) -> Delta {
        if self.markers.contains(&token) {
            let mut delta = self.stops.push(self.utf8.finish());
            if delta.stopped.is_none() && !self.stops.is_over() {
                delta.text.push_str(&self.stops.interrupt());
                delta.marker = Some(token);
            }
            return delta;
        }
        self.bytes.clear();
        self.joiner.push(self.tokenizer.pieces(), token, &mut self.bytes);
        let text = self.utf8.push(&self.bytes);
        self.stops.push(text)
    }

    /// The text still held back when the sequence ends; empty after a stop string.
    pub fn finish(&mut self) -> String {
        let text = self.utf8.finish();
        let mut last = self.stops.push(text).text;
        last.push_str(&self.stops.finish());
        last
    }
}
