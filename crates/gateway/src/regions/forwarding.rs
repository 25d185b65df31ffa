//! Which forwarded requests a gateway takes, and what it tells the next one of a request that it forwards. So
//! a request goes through two gateways at most, and stays in its regions behind the second one. Does not know
//! routes.

use throng_core::fleet::routing::Region;
use throng_fleet::upstream::Forwarding;

use crate::caller::Destination;
use throng_api::ApiError;

/// Most gateways that may have forwarded a request that this one takes.
const MAX_HOPS: u8 = 1;

/// The headers of a client's request that this gateway forwards, bound to these regions.
///
/// # Errors
/// Returns those of [`check_hops`].
pub(crate) fn forwarding(
    destination: &Destination,
    regions: Option<&[Region]>,
) -> Result<Forwarding, ApiError> {
    Ok(Forwarding::new(check_hops(destination)? + 1, regions))
}

/// Whether a gateway takes a request that it does not compute itself; how many gateways have forwarded it.
///
/// # Errors
/// 508 `too_many_hops` for one that a gateway forwarded to a gateway; 400 for a header that cannot be
/// understood.
pub(crate) fn check_hops(destination: &Destination) -> Result<u8, ApiError> {
    let n_hops = destination.n_hops()?;
    if n_hops > MAX_HOPS { Err(ApiError::too_many_hops()) } else { Ok(n_hops) }
}
