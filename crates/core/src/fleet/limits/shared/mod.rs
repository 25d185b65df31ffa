//! Limits that hold over several gateways. Each gateway may use a share of every limit, and the sum of the
//! shares never exceeds the limit. Since each gateway keeps its use of the last minute within its share, all
//! of them together stay within the limit, to the token.
//!
//! [`Leases`] is a gateway's side: it admits requests within its shares and asks for changes of them.
//! [`Pool`] answers all gateways and grants shares that no gateway has. In production the pool is a script
//! that Redis runs; [`Pool`] is the same in Rust, against which the script is tested. Both have no sockets
//! and clocks.
//!
//! - A gateway stops using a share that it returns when it sends the report, before the report has arrived.
//!   Shares are reported as absolute numbers, so that lost, late and repeated messages do no harm; they are
//!   numbered, so that a late one cannot overtake a newer one.
//! - Each gateway leases an equal part of a limit in advance, and more as it needs it. Once a gateway needs
//!   more than is left, the others return their unused shares, and all of them query the pool for each
//!   request, until no gateway has been short for a while.
//! - If the pool does not answer, a gateway uses its shares for [`LEASE`], then at most an equal part, and a
//!   full equal part once the usage of others beyond theirs has left the minute.
//! - A pool that has lost its memory, or was not reached by any gateway for a while, grants no shares until
//!   all gateways had time to report theirs.

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

/// Time for which a gateway may use its shares after the pool's last answer.
pub const LEASE: Nanos = Nanos(5_000_000_000);
/// Maximum number of scopes in one question.
pub const MAX_ENTRIES: usize = 256;
/// Largest limit; higher limits count as this, since numbers of the pool are doubles.
const MOST: u64 = 1 << 53;

/// Numbers of requests in a minute, tokens in a minute, and concurrent requests.
pub type Amounts = [u64; 3];

/// Report of a gateway to the pool, with the shares that it requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Number of the question, which increases with each question of a gateway.
    pub number: u64,
    /// Whether this is the gateway's last question.
    pub is_last: bool,
    /// Scopes that are reported.
    pub entries: Vec<LeaseRequestEntry>,
}

/// Shares of a scope that a gateway has and requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRequestEntry {
    /// Name of the scope.
    pub name: Arc<str>,
    /// Whole limits of the scope.
    pub limits: [Option<u64>; 3],
    /// The share that the gateway keeps.
    pub keep: Amounts,
    /// Amounts that waiting requests need.
    pub need: Amounts,
    /// Further amounts to grant, if no other gateway needs them.
    pub want: Amounts,
    /// Whether the gateway returns its unused shares.
    pub yields: bool,
}

/// The pool's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseReply {
    /// Number of gateways.
    pub n_gateways: u64,
    /// Number of the pool's memory. A gateway reports its shares when this differs from the last answer's.
    pub epoch: u64,
    /// Whether no shares are granted because gateways may not have reported theirs yet.
    pub is_settling: bool,
    /// Replies, one for each entry of the question.
    pub entries: Vec<LeaseReplyEntry>,
    /// Scopes of which a gateway requested more than was left, within the last seconds.
    pub short: Vec<Arc<str>>,
}

/// Amounts that a gateway may use of a scope.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseReplyEntry {
    /// The share from now on.
    pub share: Amounts,
    /// Amounts that no gateway has.
    pub free: Amounts,
    /// Whether all others keep no more than they use.
    pub is_final: bool,
}

/// Limits in the pool's representation.
fn numbers(limits: &Limits) -> [Option<u64>; 3] {
    let Limits { requests_per_minute, tokens_per_minute, concurrent_requests } = *limits;
    [requests_per_minute, tokens_per_minute, concurrent_requests].map(|limit| limit.map(|n| n.min(MOST)))
}

/// Limits from the pool's representation.
fn limits_of([requests, tokens, concurrent]: [Option<u64>; 3]) -> Limits {
    Limits { requests_per_minute: requests, tokens_per_minute: tokens, concurrent_requests: concurrent }
}
