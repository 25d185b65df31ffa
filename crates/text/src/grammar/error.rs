//! Why a constraint cannot be used. Does not know HTTP statuses and the names of parameters.

/// Reason why a constraint could not be compiled or evaluated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The constraint is not what its kind requires: a regular expression with a syntax error, a rule that is
    /// not defined.
    #[error("{0}")]
    Invalid(String),
    /// A JSON schema uses a keyword that cannot be enforced.
    #[error("the keyword '{keyword}' at '{path}' is not supported")]
    UnsupportedKeyword {
        /// The keyword.
        keyword: String,
        /// A JSON pointer to the schema that has it, `#` for the whole schema.
        path: String,
    },
    /// Well-formed, but outside of what is supported.
    #[error("{0}")]
    Unsupported(String),
    /// The constraint exceeds a limit on size, depth or work.
    #[error("the constraint is too complex: {0}")]
    TooComplex(String),
    /// No output fits it.
    #[error("no output can satisfy the constraint: {0}")]
    Unsatisfiable(String),
    /// The model has no token that could end an output, so no constrained output would ever end.
    #[error("the model has no end token")]
    NoEndToken,
    /// The output so far does not belong to the grammar.
    #[error("the output does not fit the grammar: {0}")]
    Mismatch(String),
    /// The grammar library failed where it should not.
    #[error("the grammar library failed: {0}")]
    Internal(String),
}
