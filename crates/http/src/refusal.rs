//! Why the server refuses a request before anything reads its content. Does not know how clients are told.

/// Reason why the input of a connection ends with a request that must be answered with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The head or the framing of the body breaks a rule.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The head did not arrive in time.
    #[error("its head did not arrive in time")]
    HeadTimeout,
    /// The server ends, and the rest of the head did not arrive before.
    #[error("the server ends")]
    ShuttingDown,
}

/// Rule that the head of a request, or the framing of its body, breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The syntax or the framing; a clause that says what.
    #[error("{0}")]
    Malformed(&'static str),
    /// Neither HTTP/1.0 nor HTTP/1.1.
    #[error("neither HTTP/1.0 nor HTTP/1.1")]
    Version,
    /// The target is not a URI.
    #[error("its target is not a URI")]
    Target,
    /// The target is too long.
    #[error("its target is too long")]
    TargetTooLong,
    /// Too many fields, one that is too long, or all together are.
    #[error("its header fields are too large")]
    FieldsTooLarge,
    /// The field with the credentials is too long, and the server demands credentials.
    #[error("its credentials are too long")]
    CredentialsTooLarge,
}
