//! State of a server between requests, in the objects of `throng_store`. Generation is requested through
//! traits that the gateway implements. Does not know HTTP and sockets.
#![forbid(unsafe_code)]

pub mod batches;
pub mod conversations;
mod error;
mod fault;
pub mod files;
mod id;
mod items;
pub mod responses;
mod results;
mod tenant;

pub use error::StateError;
pub use id::new_id;
pub use tenant::{Page, TenantState};
