//! Routes for files and batches of tenants. Does not store them.

pub(super) mod batches;
pub(super) mod files;
mod list_query;
pub(super) mod message_batches;
