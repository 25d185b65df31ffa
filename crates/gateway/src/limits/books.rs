//! What is used of the limits: of this gateway's own, or of shares of those that several gateways have. Does not know Redis.

use throng_core::limits::shared::{Leases, Undecided};
use throng_core::limits::{LimitRefusal, Limiter, Reservation, Scope, Status};
use throng_core::time::Timestamp;

/// Who keeps the limits.
#[derive(Debug)]
pub(super) enum Books {
    /// This gateway alone.
    Alone(Limiter),
    /// All gateways that share them.
    Shared(Box<Leases>),
}

/// Why a request may not begin now.
#[derive(Debug)]
pub(super) enum Denied {
    /// It may not.
    Refused(LimitRefusal),
    /// It may if other gateways do not use all that they have. Else it is refused with this.
    AskOthers(LimitRefusal),
}

impl Books {
    pub fn new(max_scopes: usize, n_gateways: Option<u64>) -> Self {
        match n_gateways {
            None => Self::Alone(Limiter::new(max_scopes)),
            Some(n) => Self::Shared(Box::new(Leases::new(max_scopes, n))),
        }
    }

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
                    Undecided::Ask(refusal) => Denied::AskOthers(refusal),
                    Undecided::Refused(refusal) => Denied::Refused(refusal),
                })
            }
        }
    }

    pub fn settle(&mut self, reservation: Reservation, n_used: u64, now: Timestamp) {
        match self {
            Self::Alone(limiter) => limiter.settle(reservation, n_used, now),
            Self::Shared(leases) => leases.settle(reservation, n_used, now),
        }
    }

    pub fn cancel(&mut self, reservation: Reservation) {
        match self {
            Self::Alone(limiter) => limiter.cancel(reservation),
            Self::Shared(leases) => leases.cancel(reservation),
        }
    }

    pub fn status(&mut self, scopes: &[Scope], now: Timestamp) -> Status {
        match self {
            Self::Alone(limiter) => limiter.status(scopes, now),
            Self::Shared(leases) => leases.status(scopes, now),
        }
    }

    pub fn shared(&mut self) -> Option<&mut Leases> {
        match self {
            Self::Alone(_) => None,
            Self::Shared(leases) => Some(leases),
        }
    }
}
