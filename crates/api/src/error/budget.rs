//! A budget that does not allow a request. Does not know where budgets are counted.

use http::StatusCode;

use super::{ApiError, ErrorType};

/// Facts about a budget for its error. Amounts are written out, with their unit.
#[derive(Debug)]
pub struct SpentBudget<'a> {
    /// Whose it is, as in "this API key".
    pub owner: &'a str,
    /// How much it allows, as in "1000 tokens a day".
    pub limit: &'a str,
    /// How much of it is used.
    pub used: &'a str,
    /// How much running requests may use of it.
    pub reserved: &'a str,
    /// How much the request may use.
    pub needed: &'a str,
    /// The date on which it begins anew, at midnight UTC.
    pub resets: &'a str,
}

impl ApiError {
    /// A quota is spent; waiting does not help soon.
    pub fn insufficient_quota(budget: &SpentBudget<'_>) -> Self {
        let SpentBudget { owner, limit, used, reserved, needed, resets } = budget;
        let message = format!(
            "The budget of {owner} does not allow this request: {limit}, of which {used} are used and {reserved} reserved by running \
             requests; this request may use up to {needed}. The budget resets on {resets} at 00:00 UTC."
        );
        Self::new(StatusCode::TOO_MANY_REQUESTS, ErrorType::InsufficientQuota, "insufficient_quota", message)
    }
}
