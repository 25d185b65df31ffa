//! Encodes a prompt along the tokens of the turns before it. Does not know what the turns said.

use std::sync::atomic::AtomicBool;

use tokenizers::pipeline::{Segment, SpecialSegmentIterator};
use tokenizers::vocab::bucket_added_vocabulary::AddedVocabulary;

use super::encode::Source;
use super::trail::{PromptTrail, SegmentDigest, TokenTrail};
use super::{EncodeOptions, Tokenizer};
use crate::error::TextError;
use crate::rendered_prompt::RenderedPrompt;

/// Whether the text of an added token becomes that token before anything else is done with it.
pub(super) fn is_split_off(added: &AddedVocabulary, text: &str) -> bool {
    let mut segments = SpecialSegmentIterator::new(text, added, false, false);
    matches!((segments.next(), segments.next()), (Some(Segment::SpecialToken(_)), None))
}

impl Tokenizer {
    /// Encodes like [`Self::encode_rendered_unless`]. As far as the prompt begins like the turns of the
    /// trail, up to its last mark there, the tokens are those of the trail, and only the rest is tokenized.
    ///
    /// # Errors
    /// Errors of [`Self::encode_rendered_unless`].
    pub fn encode_rendered_along(
        &self,
        prompt: &RenderedPrompt,
        add_special_tokens: bool,
        trail: &TokenTrail,
        stop: &AtomicBool,
    ) -> Result<(Vec<u32>, PromptTrail), TextError> {
        let (text, disguise) = (prompt.disguised.as_str(), Some(&*prompt.disguise));
        self.check_length(text, disguise)?;
        let mut digest = SegmentDigest::new(self.fingerprint, add_special_tokens);
        let mut marks = trail.marks.iter().peekable();
        let mut found = None;
        for (idx, segment) in SpecialSegmentIterator::new(text, &self.added, false, false).enumerate() {
            match segment {
                Segment::Text { text, .. } => digest.text(&prompt.disguise.reveal(text)),
                Segment::SpecialToken(id) => {
                    while marks.next_if(|mark| digest.is_past(mark)).is_some() {}
                    // The rest begins with a control token, so that it is split as it is in the whole.
                    found = marks.next_if(|mark| digest.is_at(mark)).map(|mark| (idx, mark)).or(found);
                    digest.control(id);
                }
            }
        }
        let ends_otherwise = add_special_tokens && !self.suffix.is_empty();
        let options = EncodeOptions { add_special_tokens, parse_special: true };
        let Some((n_skipped, mark)) = found.filter(|_| !ends_otherwise) else {
            let tokens = self.encode_source(&Source { text, disguise, options, n_skipped: 0 }, Some(stop))?;
            return Ok((tokens, PromptTrail { n_kept: 0, digest }));
        };
        let options = EncodeOptions { add_special_tokens: false, ..options };
        let rest = self.encode_source(&Source { text, disguise, options, n_skipped }, Some(stop))?;
        let tokens = [&trail.tokens[..mark.n_tokens], &rest].concat();
        Ok((tokens, PromptTrail { n_kept: mark.n_tokens, digest }))
    }

    /// Whether the token is split off from the text around it.
    pub(super) fn splits_text(&self, id: u32) -> bool {
        self.split_off.binary_search(&id).is_ok()
    }
}
