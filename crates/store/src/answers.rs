//! Answers that are kept under a key which a client has chosen (`Idempotency-Key`), so that a request which
//! is sent again is answered with the same bytes. Does not know HTTP.

/// Most answers that are kept for a tenant, those on their way included.
pub const MAX_ANSWERS: u64 = 10_000;
/// Most bytes of a tenant's answers: past it the oldest go.
pub const MAX_ANSWER_BYTES: u64 = 256 << 20;

/// A claim to answer a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerClaim {
    /// Tenant of the request.
    pub tenant: String,
    /// The client's key, unique within the tenant.
    pub key: String,
    /// A digest of the request: another request cannot have the same key.
    pub request: String,
    /// Name of the claim's owner, another one for each attempt.
    pub owner: String,
    /// Time at which the answer may be forgotten, in seconds since the epoch.
    pub expires_unix_s: u64,
}

/// A sign of life of whoever has a claim. It changes while the owner lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimBeat {
    /// The owner.
    pub owner: String,
    /// Goes up.
    pub beat: u64,
}

/// Outcome of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The caller has the claim, and nobody else.
    Granted,
    /// Somebody else has it.
    Taken(ClaimBeat),
    /// Another request has the key.
    OtherRequest,
    /// The request was answered.
    Answered(KeptAnswer),
    /// The tenant has as many claims as may be.
    Full,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptAnswer {
    /// Its type.
    pub content_type: String,
    /// All of it.
    pub body: Vec<u8>,
}
