//! Errors of region rules and of forwarding between gateways. Does not know the rules and the gateways.

use http::StatusCode;

use super::ApiError;

impl ApiError {
    /// No replica of the model is in a region that the request may go to.
    pub fn region_not_permitted() -> Self {
        let message = "This model cannot answer in the regions that the request is bound to by the residency rule of its \
                       organisation or by the header 'x-throng-regions'.";
        Self::client(StatusCode::FORBIDDEN, "region_not_permitted", message)
    }

    /// The request has already been forwarded twice, as in a loop of gateways.
    pub fn too_many_hops() -> Self {
        let message = "The request was forwarded by two gateways already: the gateways may forward to each other in a loop.";
        Self::server(StatusCode::LOOP_DETECTED, "too_many_hops", message)
    }
}
