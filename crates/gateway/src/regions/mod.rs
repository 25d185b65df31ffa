//! Where requests may go. Does not know where replicas are.

mod residency;

pub(crate) use self::residency::check_regions;
