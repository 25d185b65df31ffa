//! Estimates the probability that the next draft of a sequence is accepted, from its latest ones. Does not
//! know tokens.

/// Estimate before the first verified draft.
const PRIOR: f64 = 0.5;

/// Weight of the newest verified draft.
const NEWEST_WEIGHT: f64 = 0.125;

/// Share of the distance to the prior by which the estimate returns in a step without a verified draft, so
/// that a sequence whose drafts were wrong tries again later.
const RETURN_RATE: f64 = 0.01;

/// A decaying mean of the outcomes of verified drafts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Acceptance {
    probability: f64,
}

impl Default for Acceptance {
    fn default() -> Self {
        Self { probability: PRIOR }
    }
}

impl Acceptance {
    /// The probability that a draft is accepted if all drafts before it are. (0, 1).
    pub fn probability(&self) -> f64 {
        self.probability
    }

    /// Notes a step that computed `n_drafts` and accepted the first `n_accepted` of them. Drafts after the
    /// first rejected one do not count: they follow a wrong token.
    pub fn observe(&mut self, n_drafts: usize, n_accepted: usize) {
        if n_drafts == 0 {
            self.probability += RETURN_RATE * (PRIOR - self.probability);
        }
        for _ in 0..n_accepted {
            self.probability += NEWEST_WEIGHT * (1.0 - self.probability);
        }
        if n_accepted < n_drafts {
            self.probability -= NEWEST_WEIGHT * self.probability;
        }
    }
}
