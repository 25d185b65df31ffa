//! Mistakes that the code between the decisions could make. The composed simulation must find each of them.

/// A mistake.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// A request that failed over settles its charge before it has ended.
    EarlySettlement,
    /// A request whose client left never gives its charge back.
    ForgottenCharge,
    /// The next replica gets one token fewer than was passed on.
    RepeatedToken,
    /// The next replica gets a token that was not passed on.
    SkippedToken,
    /// The load of a refused attempt stays counted.
    LeakedLoad,
    /// Events of an earlier attempt count for the present one.
    NoFence,
    /// Requests that wait for a replica are not looked at again.
    ForgottenWaiters,
}

impl Sabotage {
    /// All bugs that can be planted.
    pub const ALL: [Self; 7] = [
        Self::EarlySettlement,
        Self::ForgottenCharge,
        Self::RepeatedToken,
        Self::SkippedToken,
        Self::LeakedLoad,
        Self::NoFence,
        Self::ForgottenWaiters,
    ];
}
