//! The caller of a request, with its id and destination: all that policies around a request read.

mod cache_policy;
mod destination;
mod identity;

pub(crate) use self::destination::Destination;
pub(crate) use self::identity::{Caller, content_length};
