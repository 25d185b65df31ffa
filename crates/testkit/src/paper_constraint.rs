//! A token constraint without a grammar, for tests: the allowed tokens follow from a hash of the output so
//! far. It refuses outputs that it did not allow itself, so that a mask of the wrong position shows. Does not
//! know executors.

use throng_core::constraint::{ConstraintError, TokenConstraint, TokenMask};
use throng_core::request::TokenId;

/// Allows about half of the vocabulary after each output, and at least one token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PaperConstraint {
    /// Token ids are below this.
    pub vocabulary_size: u32,
    /// Seed of the tokens.
    pub seed: u64,
    /// One in this many outputs allows a single token; 0: none does.
    pub one_in_forced: u64,
    /// Number of output tokens after which there is no mask, if given.
    pub fails_after: Option<usize>,
}

impl PaperConstraint {
    fn key(&self, output: &[TokenId]) -> u64 {
        output.iter().fold(self.seed, |key, &token| hash(key, u64::from(token) + 1))
    }

    /// A token that is certainly allowed, and whether it is the only one.
    fn first(&self, key: u64) -> (TokenId, bool) {
        let is_alone = hash(key, 1).is_multiple_of(self.one_in_forced);
        ((key % u64::from(self.vocabulary_size)) as TokenId, is_alone)
    }

    fn allows(&self, key: u64, token: TokenId) -> bool {
        let (first, is_alone) = self.first(key);
        token == first || (!is_alone && hash(key, u64::from(token) + 2).is_multiple_of(2))
    }
}

impl TokenConstraint for PaperConstraint {
    fn mask(&self, output: &[TokenId], mask: &mut TokenMask) -> Result<(), ConstraintError> {
        if self.fails_after == Some(output.len()) {
            return Err(ConstraintError::LimitExceeded);
        }
        if let Some((&last, before)) = output.split_last()
            && !self.allows(self.key(before), last)
        {
            return Err(ConstraintError::OutputRejected);
        }
        let key = self.key(output);
        (0..self.vocabulary_size).filter(|&t| self.allows(key, t)).for_each(|t| mask.allow(t));
        Ok(())
    }

    fn forced(&self, output: &[TokenId], forced: &mut Vec<TokenId>) {
        let mut output = output.to_vec();
        while let (token, true) = self.first(self.key(&output)) {
            forced.push(token);
            output.push(token);
            if forced.len() == 8 {
                break;
            }
        }
    }
}

/// Hashes two words into one.
fn hash(a: u64, b: u64) -> u64 {
    let x = (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53) ^ (x >> 29)
}
