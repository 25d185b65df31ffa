//! Requests that may not go where they would be answered. Does not know regions and gateways.

use http::StatusCode;

use super::ApiError;

impl ApiError {
    /// Refuses a request if none of the replicas is where it may go.
    pub fn region_not_permitted() -> Self {
        let message = "This model cannot answer in the regions that the request is bound to by the residency rule of its \
                       organisation or by the header 'x-throng-regions'.";
        Self::client(StatusCode::FORBIDDEN, "region_not_permitted", message)
    }

    /// A gateway forwarded it to a gateway, which would have forwarded it to this one.
    pub fn too_many_hops() -> Self {
        let message = "The request was forwarded by two gateways already: the gateways may forward to each other in a loop.";
        Self::server(StatusCode::LOOP_DETECTED, "too_many_hops", message)
    }
}
