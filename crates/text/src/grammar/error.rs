//! Errors of constraints. Does not know HTTP statuses and the names of parameters.

/// Reason why a constraint could not be compiled or evaluated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The constraint is invalid: for example a syntax error in a regular expression, or an undefined rule.
    #[error("{0}")]
    Invalid(String),
    /// A JSON schema uses a keyword that cannot be enforced.
    #[error("the keyword '{keyword}' at '{path}' is not supported")]
    UnsupportedKeyword {
        /// Name of the keyword.
        keyword: String,
        /// JSON pointer to the schema with the keyword; `#` for the whole schema.
        path: String,
    },
    /// The constraint is well-formed, but not supported.
    #[error("{0}")]
    Unsupported(String),
    /// The constraint exceeds a limit on size, depth or work.
    #[error("the constraint is too complex: {0}")]
    TooComplex(String),
    /// No output satisfies the constraint.
    #[error("no output can satisfy the constraint: {0}")]
    Unsatisfiable(String),
    /// The model has no end token, so no constrained output would ever end.
    #[error("the model has no end token")]
    NoEndToken,
    /// The output so far does not match the grammar.
    #[error("the output does not fit the grammar: {0}")]
    Mismatch(String),
    /// The grammar library failed unexpectedly.
    #[error("the grammar library failed: {0}")]
    Internal(String),
}

/// The first line of a library's message, with the reason that stands below it where it ends with a colon; at
/// most 256 characters.
pub(super) fn summary(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    let reason = message.lines().find_map(|line| line.trim().strip_prefix("error: "));
    let text = match reason {
        Some(reason) if first.trim_end().ends_with(':') => format!("{} {reason}", first.trim_end()),
        _ => first.to_owned(),
    };
    text.chars().take(256).collect()
}
