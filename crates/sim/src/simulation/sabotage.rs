//! Possible mistakes of the code between the decisions. The composed simulation must find each of them.

/// A mistake that can be planted into the simulation.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// A request that failed over settles its charge before it has ended.
    EarlySettlement,
    /// The charge of a request whose client left is never returned.
    ForgottenCharge,
    /// The next replica gets one token fewer than was passed on.
    RepeatedToken,
    /// The next replica gets a token that was not passed on.
    SkippedToken,
    /// Keeps the load of a refused attempt counted.
    LeakedLoad,
    /// Events of an earlier attempt count for the present one.
    NoFence,
    /// Does not try again requests that wait for a replica.
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
