//! Tokens to text, one at a time: whole characters only, and nothing that might be the start of a stop
//! string. Does not know why a generation ends otherwise.

mod stop;
mod utf8;

use std::sync::Arc;

use crate::tokenizer::{PieceJoiner, Tokenizer};
use stop::StopMatcher;
use utf8::Utf8Stream;

/// Options for making text of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetokenizeOptions {
    /// Leave control tokens out of the text.
    pub skip_special_tokens: bool,
    /// Accepted for compatibility; no tokenizer Throng runs puts spaces there.
    pub spaces_between_special_tokens: bool,
    /// Strings that end the text. Empty ones never match.
    pub stop: Vec<String>,
    /// Keep the stop string at the end of the text.
    pub include_stop_str_in_output: bool,
    /// Control tokens that are told apart in [`Delta::marker`], whether others are left out of the text or
    /// not.
    pub markers: Vec<u32>,
    /// The text goes on where a prompt ended (`/v1/completions`), so a SentencePiece tokenizer's first space
    /// stays; `false` starts a text of its own, as `Tokenizer::decode` does.
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

/// Text that one token made certain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delta {
    /// Text to append; often empty, while a character or a possible stop string is incomplete.
    pub text: String,
    /// The token itself, where it is one of [`DetokenizeOptions::markers`]. It comes after `text`, and no
    /// stop string goes across it.
    pub marker: Option<u32>,
    /// The index of the stop string that ended the text. The sequence is over: later tokens add nothing.
    pub stopped: Option<usize>,
}

/// Turns one sequence's tokens into text as they come. But for markers, the deltas' concatenation,
/// [`Self::finish`] included, is `Tokenizer::decode` of all tokens, cut at the stop string that is complete
/// first (of two complete at once, the longer). Work and memory a token do not grow with the sequence.
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
    /// A detokenizer for one sequence.
    pub fn new(tokenizer: Arc<Tokenizer>, options: DetokenizeOptions) -> Self {
        let joiner =
            PieceJoiner::new(tokenizer.pieces(), options.skip_special_tokens, options.continues_prompt);
        let stops = StopMatcher::new(options.stop, options.include_stop_str_in_output);
        let markers = options.markers;
        Self { tokenizer, joiner, bytes: Vec::new(), utf8: Utf8Stream::default(), stops, markers }
    }

    /// The text that `token` makes certain.
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
