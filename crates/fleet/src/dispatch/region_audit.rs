//! The regions that a request may be sent to, and the trait that is told where it goes. Does not know rules
//! and logs.

use std::fmt::Debug;

use throng_core::fleet::routing::Region;

/// A request that may only be sent to some regions. Each replica that it is sent to is reported.
pub trait RegionBound: Debug + Send + Sync {
    /// The only regions that the request may be sent to.
    fn regions(&self) -> &[Region];

    /// Reports that the request is sent to a replica, and the region of that.
    fn placed(&self, replica: &str, region: Option<&Region>);

    /// Reports that no replica in these regions has taken the request in; `reason` says why.
    fn refused(&self, reason: &'static str);
}
