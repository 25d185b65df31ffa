//! Limits intersections of regular expressions. The derivatives of an intersection are the combinations of
//! its operands' derivatives (Brzozowski 1964), and llguidance counts their cost only after creating them
//! all, so that a few hundred bytes of patterns could take hours. Does not know the notation of an
//! intersection.

use super::GrammarError;

/// Maximum number of expressions that one text must match, for intersections of at most this many bytes in
/// total.
const BOUNDS: [(usize, usize); 2] = [(2, 8 << 10), (3, 1 << 10)];

/// Expressions that one text must match.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Operands {
    /// Number of expressions.
    pub n: usize,
    /// Total bytes of their sources.
    pub n_bytes: usize,
}

impl Operands {
    /// Adds the operands of another intersection.
    pub fn and(self, other: Self) -> Self {
        Self { n: self.n.saturating_add(other.n), n_bytes: self.n_bytes.saturating_add(other.n_bytes) }
    }

    /// Takes the maximum of both numbers.
    pub fn or(self, other: Self) -> Self {
        Self { n: self.n.max(other.n), n_bytes: self.n_bytes.max(other.n_bytes) }
    }

    /// Checks the limit.
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
