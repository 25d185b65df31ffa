//! Moderation rules: literals and regular expressions, applied to a whole text or to a stream. Does not
//! know the origin of the text, nor the consequences.

mod rules;
mod stream;

pub use rules::{RuleError, RuleSet, TextRule};
pub use stream::{Found, TextFilter};
