//! Routes for what tenants keep: files and batches. Does not know how they are kept.

pub(super) mod batches;
pub(super) mod files;
mod list_query;
pub(super) mod message_batches;
