//! Rules for forwarded requests, and the headers of requests that are forwarded: a request passes two
//! gateways at most, and stays in its regions behind the second one. Does not know routes.

use throng_core::fleet::routing::Region;
use throng_fleet::upstream::Forwarding;

use crate::caller::Destination;
use throng_api::ApiError;

/// Maximum number of gateways that may have forwarded a request.
const MAX_HOPS: u8 = 1;

/// Headers for a client's request that this gateway forwards, with the regions that it is bound to.
///
/// # Errors
/// Errors of [`check_hops`].
pub(crate) fn forwarding(
    destination: &Destination,
    regions: Option<&[Region]>,
) -> Result<Forwarding, ApiError> {
    Ok(Forwarding::new(check_hops(destination)? + 1, regions))
}

/// Checks that this gateway may forward a request; returns the number of gateways that have forwarded it.
///
/// # Errors
/// 508 `too_many_hops` for a request that was forwarded between gateways before; 400 for an invalid header.
pub(crate) fn check_hops(destination: &Destination) -> Result<u8, ApiError> {
    let n_hops = destination.n_hops()?;
    if n_hops > MAX_HOPS { Err(ApiError::too_many_hops()) } else { Ok(n_hops) }
}
