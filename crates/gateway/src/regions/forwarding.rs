//! What a gateway tells the next one of a request that it forwards, and which forwarded requests it takes. So a request goes through two
//! gateways at most, and stays in its regions behind the second one. Does not know routes.

use http::HeaderValue;
use throng_core::routing::Region;

use crate::caller::{Destination, HOPS_HEADER, REGIONS_HEADER};
use throng_api::ApiError;

/// Most gateways that may have forwarded a request that this one takes.
const MAX_HOPS: u8 = 1;

/// The headers of a forwarded request.
#[derive(Debug, Clone)]
pub(crate) struct Forwarding {
    n_hops: u8,
    regions: Option<HeaderValue>,
}

impl Forwarding {
    /// Of what a gateway asks of its own accord.
    pub const OWN: Self = Self { n_hops: 1, regions: None };

    /// Of a client's request that this gateway forwards.
    ///
    /// # Errors
    /// As [`check_hops`].
    pub fn of(destination: &Destination) -> Result<Self, ApiError> {
        Ok(Self { n_hops: check_hops(destination)? + 1, regions: None })
    }

    /// The same, bound to these regions.
    pub fn bound_to(self, regions: Option<&[Region]>) -> Self {
        // Names of regions are made of characters that a header may have.
        let regions = regions.and_then(|regions| HeaderValue::try_from(regions.join(",")).ok());
        Self { regions, ..self }
    }

    /// Adds the headers.
    pub fn add_to(&self, mut request: http::request::Builder) -> http::request::Builder {
        request = request.header(HOPS_HEADER, HeaderValue::from(u16::from(self.n_hops)));
        match &self.regions {
            Some(regions) => request.header(REGIONS_HEADER, regions),
            None => request,
        }
    }
}

/// Whether a gateway takes a request that it does not compute itself; how many gateways have forwarded it.
///
/// # Errors
/// 508 `too_many_hops` for one that a gateway forwarded to a gateway; 400 for a header that cannot be understood.
pub(crate) fn check_hops(destination: &Destination) -> Result<u8, ApiError> {
    let n_hops = destination.n_hops()?;
    if n_hops > MAX_HOPS { Err(ApiError::too_many_hops()) } else { Ok(n_hops) }
}
