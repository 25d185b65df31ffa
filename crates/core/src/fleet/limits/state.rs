//! Limits of one gateway, or shares of limits that several gateways have. Does not know Redis.

use super::shared::{Leases, Undecided};
use super::{LimitRefusal, Limiter, Reservation, Scope, Status};
use crate::time::Timestamp;

/// The limits with their usage.
#[derive(Debug)]
pub enum LimitState {
    /// Limits of this gateway alone.
    Alone(Limiter),
    /// Limits that several gateways share.
    Shared(Box<Leases>),
}

/// Reason why a request may not begin now.
#[derive(Debug)]
pub enum Denied {
    /// The request may not begin.
    Refused(LimitRefusal),
    /// The local share is exhausted; the request is refused with this unless other gateways return shares.
    AskOthers(LimitRefusal),
}

impl LimitState {
    /// Creates limits for at most `max_scopes` scopes, shared by `n_gateways` gateways if that is given.
    pub fn new(max_scopes: usize, n_gateways: Option<u64>) -> Self {
        match n_gateways {
            None => Self::Alone(Limiter::new(max_scopes)),
            Some(n) => Self::Shared(Box::new(Leases::new(max_scopes, n))),
        }
    }

    /// Charges a request that may use `n_tokens` to all of its scopes.
    ///
    /// # Errors
    /// When a limit is reached, or the local lease of one is exhausted.
    pub fn reserve(
        &mut self,
        scopes: &[Scope],
        n_tokens: u64,
        now: Timestamp,
    ) -> Result<Reservation, Denied> {
        match self {
            Self::Alone(limiter) => limiter.reserve(scopes, n_tokens, now).map_err(Denied::Refused),
            Self::Shared(leases) => {
                leases.reserve(scopes, n_tokens, now).map_err(|undecided| match undecided {
                    Undecided::LeaseRequest(refusal) => Denied::AskOthers(refusal),
                    Undecided::Refused(refusal) => Denied::Refused(refusal),
                })
            }
        }
    }

    /// Ends a request that used `n_used` tokens.
    pub fn settle(&mut self, reservation: Reservation, n_used: u64, now: Timestamp) {
        match self {
            Self::Alone(limiter) => limiter.settle(reservation, n_used, now),
            Self::Shared(leases) => leases.settle(reservation, n_used, now),
        }
    }

    /// Gives a reservation back as if the request had never been made.
    pub fn cancel(&mut self, reservation: Reservation) {
        match self {
            Self::Alone(limiter) => limiter.cancel(reservation),
            Self::Shared(leases) => leases.cancel(reservation),
        }
    }

    /// Remaining parts of the limits of these scopes.
    pub fn status(&mut self, scopes: &[Scope], now: Timestamp) -> Status {
        match self {
            Self::Alone(limiter) => limiter.status(scopes, now),
            Self::Shared(leases) => leases.status(scopes, now),
        }
    }

    /// The leases, if several gateways share the limits.
    pub fn shared(&mut self) -> Option<&mut Leases> {
        match self {
            Self::Alone(_) => None,
            Self::Shared(leases) => Some(leases),
        }
    }
}
