//! Where requests may go, and what is said of that to the next gateway. Does not know where replicas are.

mod bound;
mod forwarding;
mod residency;

pub(crate) use self::forwarding::{check_hops, forwarding};
pub(crate) use self::residency::check_regions;
