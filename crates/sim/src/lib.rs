//! A fleet under a virtual clock: the decisions of `throng-core`, driven by a cost model instead of an
//! executor and by workloads and faults instead of clients and networks. The same inputs give the same
//! events.
#![forbid(unsafe_code)]

pub mod cost;
