//! The context that travels with a request from the socket to its handler. Does not know routes or how requests are served.

mod context;
mod destination;

pub(crate) use self::context::{RequestContext, Settled, content_length};
pub(crate) use self::destination::{Destination, HOPS_HEADER, REGIONS_HEADER};
