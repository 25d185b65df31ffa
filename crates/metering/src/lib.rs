//! Accounting for requests: ledger entries and prices, metrics, and reports of finished requests for logs
//! and `/explain`. Does not know routes and generations.
#![forbid(unsafe_code)]

mod held_bytes;
pub mod ledger;
pub mod metrics;
pub mod observation;
pub mod usage_report;

pub use held_bytes::HeldBytes;
