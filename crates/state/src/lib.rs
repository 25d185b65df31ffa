//! What a server remembers between requests, over the kept objects of `throng_store`. What has to be
//! generated is asked for through traits that the gateway implements. Does not know HTTP and sockets.
#![forbid(unsafe_code)]

pub mod batches;
mod clock;
pub mod conversations;
mod error;
mod fault;
pub mod files;
mod id;
mod items;
pub mod responses;
mod results;
mod tenant;

pub use clock::now_unix_s;
pub use error::StateError;
pub use id::new_id;
pub use tenant::{Page, TenantState};
