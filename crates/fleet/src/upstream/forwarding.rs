//! The headers that a gateway adds to a request it forwards to another gateway. Does not decide which
//! requests are forwarded.

use http::HeaderValue;
use throng_core::fleet::routing::Region;

/// Header: number of gateways that have forwarded the request so far.
pub const HOPS_HEADER: &str = "x-throng-hops";
/// Header: regions that the request is restricted to, separated by commas. It narrows a residency rule and
/// never widens one.
pub const REGIONS_HEADER: &str = "x-throng-regions";

/// Headers of a forwarded request.
#[derive(Debug, Clone)]
pub struct Forwarding {
    n_hops: u8,
    regions: Option<HeaderValue>,
}

impl Forwarding {
    /// Headers of the gateway's own requests.
    pub const OWN: Self = Self { n_hops: 1, regions: None };

    /// Creates the headers of a request that `n_hops` gateways have forwarded, including this one, and that
    /// is restricted to `regions`, if given.
    pub fn new(n_hops: u8, regions: Option<&[Region]>) -> Self {
        // Names of regions contain only characters that are valid in headers.
        let regions = regions.and_then(|regions| HeaderValue::try_from(regions.join(",")).ok());
        Self { n_hops, regions }
    }

    /// Adds the headers to a request.
    pub(super) fn add_to(&self, mut request: http::request::Builder) -> http::request::Builder {
        request = request.header(HOPS_HEADER, HeaderValue::from(u16::from(self.n_hops)));
        match &self.regions {
            Some(regions) => request.header(REGIONS_HEADER, regions),
            None => request,
        }
    }
}
