//! The headers by which a gateway tells the next one about a request that it forwards. Does not know which
//! requests may be forwarded.

use http::HeaderValue;
use throng_core::fleet::routing::Region;

/// Header: number of gateways that have forwarded the request so far.
pub const HOPS_HEADER: &str = "x-throng-hops";
/// The only regions that a request may go to, separated by commas. It narrows a residency rule and never
/// widens one.
pub const REGIONS_HEADER: &str = "x-throng-regions";

/// The headers of a forwarded request.
#[derive(Debug, Clone)]
pub struct Forwarding {
    n_hops: u8,
    regions: Option<HeaderValue>,
}

impl Forwarding {
    /// Headers of a request that a gateway makes of its own accord.
    pub const OWN: Self = Self { n_hops: 1, regions: None };

    /// Headers of a request that `n_hops` gateways have forwarded, this one included, and that may only go to
    /// `regions`, if there are some.
    pub fn new(n_hops: u8, regions: Option<&[Region]>) -> Self {
        // Names of regions are made of characters that a header may have.
        let regions = regions.and_then(|regions| HeaderValue::try_from(regions.join(",")).ok());
        Self { n_hops, regions }
    }

    /// Adds the headers.
    pub(super) fn add_to(&self, mut request: http::request::Builder) -> http::request::Builder {
        request = request.header(HOPS_HEADER, HeaderValue::from(u16::from(self.n_hops)));
        match &self.regions {
            Some(regions) => request.header(REGIONS_HEADER, regions),
            None => request,
        }
    }
}
