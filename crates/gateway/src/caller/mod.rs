//! Who asks for what, under which id, and where it may go: everything that the policy around a request reads.

mod cache_policy;
mod destination;
mod identity;

pub(crate) use self::destination::Destination;
pub(crate) use self::identity::{Caller, content_length};
