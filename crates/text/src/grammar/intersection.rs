//! A bound on intersections of regular expressions. The derivatives of an intersection are the combinations
//! of its operands' derivatives (Brzozowski 1964), and llguidance counts their cost only when it has made
//! them all, so that a few hundred bytes of patterns could take hours. Does not know in which notation an
//! intersection is written.

use super::GrammarError;

/// Most expressions that one text must match, for intersections of at most so many bytes together.
const BOUNDS: [(usize, usize); 2] = [(2, 8 << 10), (3, 1 << 10)];

/// The expressions that one text must match.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Operands {
    /// Number of bytes.
    pub n: usize,
    /// Bytes of their sources.
    pub n_bytes: usize,
}

impl Operands {
    /// Adds the operands of both.
    pub fn and(self, other: Self) -> Self {
        Self { n: self.n.saturating_add(other.n), n_bytes: self.n_bytes.saturating_add(other.n_bytes) }
    }

    /// The larger of both in each respect.
    pub fn or(self, other: Self) -> Self {
        Self { n: self.n.max(other.n), n_bytes: self.n_bytes.max(other.n_bytes) }
    }

    /// Checks the bound.
    ///
    /// # Errors
    /// [`GrammarError::TooComplex`].
    pub fn check(self) -> Result<(), GrammarError> {
        let is_within = |&(n, n_bytes): &(usize, usize)| self.n <= n && self.n_bytes <= n_bytes;
        if self.n <= 1 || BOUNDS.iter().any(is_within) {
            return Ok(());
        }
        let [(_, two), (_, three)] = BOUNDS;
        Err(GrammarError::TooComplex(format!(
            "a text that must match {} expressions of together {} bytes; two may have {two} bytes, three {three}",
            self.n, self.n_bytes
        )))
    }
}
