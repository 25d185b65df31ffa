//! Reasons to refuse a request before its content is read. Does not write responses.

/// Reason why the input of a connection ends with a request that gets an error response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The head or the framing of the body violates a rule.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The head did not arrive in time.
    #[error("its head did not arrive in time")]
    HeadTimeout,
    /// The server shut down before the rest of the head arrived.
    #[error("the server ends")]
    ShuttingDown,
}

/// Rule that the head of a request, or the framing of its body, violates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The syntax or the framing is invalid, as described by a clause.
    #[error("{0}")]
    Malformed(&'static str),
    /// The version is neither HTTP/1.0 nor HTTP/1.1.
    #[error("neither HTTP/1.0 nor HTTP/1.1")]
    Version,
    /// The target is not a URI.
    #[error("its target is not a URI")]
    Target,
    /// The target is too long.
    #[error("its target is too long")]
    TargetTooLong,
    /// There are too many header fields, or they are too long, singly or together.
    #[error("its header fields are too large")]
    FieldsTooLarge,
    /// The header field with the credentials is too long, and the server requires credentials.
    #[error("its credentials are too long")]
    CredentialsTooLarge,
}
