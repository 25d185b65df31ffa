//! The caller of a request, with its id and destination: the inputs of all policies around a request.

mod cache_policy;
mod destination;
mod identity;

pub(crate) use self::destination::Destination;
pub(crate) use self::identity::{Caller, content_length};
