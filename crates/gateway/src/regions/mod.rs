//! Regions that requests may go to, and their headers for the next gateway. Does not know the places of
//! replicas.

mod bound;
mod forwarding;
mod residency;

pub(crate) use self::forwarding::{check_hops, forwarding};
pub(crate) use self::residency::check_regions;
