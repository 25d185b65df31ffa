//! Answers stored under the client's `Idempotency-Key`, so that a repeated request gets the same bytes.
//! Does not know HTTP.

/// Maximum number of stored answers of a tenant, including those still being generated.
pub const MAX_ANSWERS: u64 = 10_000;
/// Maximum bytes of a tenant's answers; beyond it, the oldest are deleted.
pub const MAX_ANSWER_BYTES: u64 = 256 << 20;

/// A claim to answer a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerClaim {
    /// Tenant of the request.
    pub tenant: String,
    /// Idempotency key of the client, unique within the tenant.
    pub key: String,
    /// Digest of the request: another request must not use the same key.
    pub request: String,
    /// Name of the claim's owner, unique for each attempt.
    pub owner: String,
    /// Expiry of the answer, in seconds since the epoch.
    pub expires_unix_s: u64,
}

/// Heartbeat of a claim's owner, which changes while the owner runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimBeat {
    /// Name of the owner.
    pub owner: String,
    /// Counter that the owner increments.
    pub beat: u64,
}

/// Outcome of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The caller has the claim, exclusively.
    Granted,
    /// Another owner has the claim.
    Taken(ClaimBeat),
    /// Another request has used the key.
    OtherRequest,
    /// The request has been answered before.
    Answered(KeptAnswer),
    /// The tenant has the maximum number of answers, all of them still being generated.
    Full,
}

/// A stored answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptAnswer {
    /// Media type of the answer.
    pub content_type: String,
    /// Whole body.
    pub body: Vec<u8>,
}
