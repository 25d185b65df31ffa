//! The regions that a request may be sent to, and the trait for auditing its destination. Does not know rules
//! and logs.

use std::fmt::Debug;

use throng_core::fleet::routing::Region;

/// A request that may only be sent to some regions. Every replica that it is sent to is reported.
pub trait RegionBound: Debug + Send + Sync {
    /// The only regions that the request may be sent to.
    fn regions(&self) -> &[Region];

    /// Reports that the request is sent to a replica in this region.
    fn placed(&self, replica: &str, region: Option<&Region>);

    /// Reports that no replica in these regions accepted the request, with the reason.
    fn refused(&self, reason: &'static str);
}
