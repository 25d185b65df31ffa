//! Tests of single parts through what they offer to others.

mod kv_budget;
mod source;
mod speculation;
mod step_shares;
