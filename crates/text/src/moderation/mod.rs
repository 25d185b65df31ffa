//! Texts that must not be sent: rules of literals and regular expressions, applied to a whole text or to one
//! that comes in pieces. Does not know whose texts they are, and what becomes of them.

mod rules;
mod stream;

pub use rules::{RuleError, RuleSet, TextRule};
pub use stream::{Found, TextFilter};
