//! Requests that may not go where they would be answered. Does not know regions and gateways.

use http::StatusCode;

use super::ApiError;

impl ApiError {
    /// None of the replicas is where the requests of this organisation may go.
    pub fn region_not_permitted() -> Self {
        let message = "The residency rule of this organisation permits none of the regions where this model can answer.";
        Self::client(StatusCode::FORBIDDEN, "region_not_permitted", message)
    }
}
