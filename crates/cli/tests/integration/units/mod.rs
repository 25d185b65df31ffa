//! Tests of single parts through what they offer to others.

mod kv_budget;
mod step_shares;
