//! Limits that hold over several gateways. Each gateway may use a share of every limit, and the shares
//! together are never more than the limit. Since each gateway keeps the last minute within its share, all of
//! them keep it within the limit, to the token.
//!
//! [`Leases`] is a gateway's side: it admits within its shares and says which it wants changed. [`Pool`] is
//! what all gateways ask: it gives what nobody has. The one in use is a script that Redis runs; this one is
//! the same in Rust, against which the script is tested. Neither knows sockets or clocks.
//!
//! - A share that a gateway gives back is not used from the moment when it says so, before anybody has heard
//!   it. Shares are said as absolute numbers. So lost, late and repeated messages do no harm; numbered ones
//!   cannot overtake each other.
//! - Each gateway leases an equal part of a limit in advance, and more as it needs it. Once somebody wants
//!   more than is left, the others give back what they do not use, and all ask for each request, until nobody
//!   has wanted for a while.
//! - Where the pool does not answer, a gateway goes on with its shares for [`LEASE`], then with no more than
//!   an equal part, and with an equal part once what others had used beyond theirs has left the minute.
//! - A pool that has lost its memory, or was not reached by anybody for a while, gives nothing until all had
//!   time to say what they have.

mod lease;
mod leases;
mod pool;
#[cfg(test)]
mod schedules;

pub use leases::{Leases, Undecided};
pub use pool::Pool;

use std::sync::Arc;

use super::limiter::Limits;
use crate::time::Nanos;

/// Time for which a gateway may use its shares after it last heard from the pool.
pub const LEASE: Nanos = Nanos(5_000_000_000);
/// Most scopes in one question.
pub const MAX_ENTRIES: usize = 256;
/// A limit above this counts as this: numbers of the pool are doubles.
const MOST: u64 = 1 << 53;

/// One number for each of requests in a minute, tokens in a minute, and requests at a time.
pub type Amounts = [u64; 3];

/// Report of a gateway to the pool, with its requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Goes up with each question of a gateway.
    pub number: u64,
    /// Whether the gateway will ask nothing more.
    pub is_last: bool,
    /// The scopes that it speaks of.
    pub entries: Vec<LeaseRequestEntry>,
}

/// Shares of a scope that a gateway has and wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRequestEntry {
    /// The scope's name.
    pub name: Arc<str>,
    /// Its whole limits.
    pub limits: [Option<u64>; 3],
    /// The share that the gateway goes on using.
    pub keep: Amounts,
    /// Amounts that waiting requests lack.
    pub need: Amounts,
    /// Amounts that it would have besides, if nobody else needs them.
    pub want: Amounts,
    /// Whether it keeps no more than it uses.
    pub yields: bool,
}

/// The pool's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseReply {
    /// Number of gateways.
    pub n_gateways: u64,
    /// Number of the pool's memory. A gateway that sees another one than before reports its shares.
    pub epoch: u64,
    /// Whether nothing is given because gateways may not have said yet what they have.
    pub is_settling: bool,
    /// Replies, one for each entry of the question.
    pub entries: Vec<LeaseReplyEntry>,
    /// Scopes of which somebody wanted more than was left, within the last seconds.
    pub short: Vec<Arc<str>>,
}

/// Amounts that a gateway may use of a scope.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseReplyEntry {
    /// The share from now on.
    pub share: Amounts,
    /// Amounts that nobody has.
    pub free: Amounts,
    /// Whether all others keep no more than they use.
    pub is_final: bool,
}

/// Limits as the numbers that the pool knows.
fn numbers(limits: &Limits) -> [Option<u64>; 3] {
    let Limits { requests_per_minute, tokens_per_minute, concurrent_requests } = *limits;
    [requests_per_minute, tokens_per_minute, concurrent_requests].map(|limit| limit.map(|n| n.min(MOST)))
}

/// The other way round.
fn limits_of([requests, tokens, concurrent]: [Option<u64>; 3]) -> Limits {
    Limits { requests_per_minute: requests, tokens_per_minute: tokens, concurrent_requests: concurrent }
}
