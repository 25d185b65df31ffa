//! The error of an exhausted budget. Does not account for budgets.

use http::StatusCode;

use super::{ApiError, ErrorType};

/// Facts about a budget for the error message. Amounts are text with a unit.
#[derive(Debug)]
pub struct SpentBudget<'a> {
    /// Owner, as in "this API key".
    pub owner: &'a str,
    /// Limit, as in "1000 tokens a day".
    pub limit: &'a str,
    /// Amount used so far.
    pub used: &'a str,
    /// Amount reserved for running requests.
    pub reserved: &'a str,
    /// Amount that the request needs.
    pub needed: &'a str,
    /// Date of the next period, which starts at midnight UTC.
    pub resets: &'a str,
}

impl ApiError {
    /// A budget is exhausted; retrying soon does not help.
    pub fn insufficient_quota(budget: &SpentBudget<'_>) -> Self {
        let SpentBudget { owner, limit, used, reserved, needed, resets } = budget;
        let message = format!(
            "The budget of {owner} does not allow this request: {limit}, of which {used} are used and {reserved} reserved by running \
             requests; this request may use up to {needed}. The budget resets on {resets} at 00:00 UTC."
        );
        Self::new(StatusCode::TOO_MANY_REQUESTS, ErrorType::InsufficientQuota, "insufficient_quota", message)
    }
}
