//! Features of pictures as an executor would have them: no token of a picture is computed before all work on
//! its features was asked for.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use throng_core::prompt_media::ContentDigest;
use throng_core::scheduling::batch::{ScheduledBatch, ScheduledSequence, StepOutput};
use throng_core::scheduling::block_hash::BlockHash;

use super::requests::one_in;

/// A content among those of the sequences that may share what was computed.
type Picture = (Option<BlockHash>, ContentDigest);

#[derive(Debug, Default)]
pub struct Pictures {
    /// Parts done of pictures that were begun.
    begun: BTreeMap<Picture, u32>,
    /// Pictures with all features, or of which it is known that they have none.
    whole: BTreeSet<Picture>,
    /// Number of pictures whose work was parted.
    pub n_parted: usize,
}

impl Pictures {
    /// Does the work of a step, and checks that its tokens have their features.
    pub fn work(
        &mut self,
        rng: &mut Rng,
        batch: &ScheduledBatch,
        output: &mut StepOutput,
    ) -> Result<(), String> {
        for (idx, encoding) in batch.encodings().iter().enumerate() {
            let picture = (encoding.media_scope, encoding.span().digest);
            if encoding.share.all != encoding.span().len || encoding.n_before >= encoding.share.done {
                return Err(format!("{:?} after {} parts", encoding.share, encoding.n_before));
            }
            let done = self.begun.entry(picture).or_default();
            *done = encoding.share.done.max(*done);
            if encoding.share.is_whole() || one_in(rng, 12) {
                self.n_parted += usize::from(encoding.n_before > 0 && encoding.share.is_whole());
                self.whole.insert(picture);
            }
            if self.whole.contains(&picture) {
                output.media.note_done(idx);
            }
        }
        match batch.sequences().iter().find(|scheduled| self.lacks(scheduled)) {
            Some(scheduled) => Err(format!("{} has tokens of a picture without features", scheduled.id)),
            None => Ok(()),
        }
    }

    /// Whether a sequence computes tokens of a picture whose features are not there. A single token is
    /// computed without the work having been planned.
    fn lacks(&self, scheduled: &ScheduledSequence) -> bool {
        let end = u64::from(scheduled.start) + scheduled.n_tokens() as u64;
        let spans = scheduled.media.iter().flat_map(|media| &media.spans);
        let is_lacking = |digest| !self.whole.contains(&(scheduled.media_scope, digest));
        scheduled.n_tokens() > 1
            && spans
                .filter(|span| u64::from(span.start) < end && span.end() > u64::from(scheduled.start))
                .any(|span| is_lacking(span.digest))
    }

    /// Forgets everything, like an executor that was lost.
    pub fn forget(&mut self) {
        self.begun.clear();
        self.whole.clear();
    }
}
