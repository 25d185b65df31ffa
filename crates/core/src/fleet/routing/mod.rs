//! Chooses the replica of a request from the replicas' reports and the requests sent to them. Does not know
//! connections or replica health: the caller passes the eligible replicas.

mod load;
mod places;
mod policy;
mod prefixes;
#[cfg(test)]
mod regions_under_load;
mod router;
mod split;

pub use load::{ExchangeReport, LoadReport, REPORT_LIFETIME, ReplicaId, SiteLoad, Ticket};
pub use places::{EVERYONE, MAX_REGIONS, Region, Residency, UNMEASURED, is_region_name};
pub use policy::{Policy, UnknownPolicy};
pub use prefixes::{CachedPrefixes, PrefixIndex};
pub use router::{Choice, Query, Router};
pub use split::{LEAST_SPLIT_TOKENS, Role, SplitDecision, SplitEstimate, SplitFacts, SplitVerdict};
