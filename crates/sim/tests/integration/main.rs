//! Tests of whole runs.
#![allow(missing_docs)]

mod fleets;
mod queueing;
mod reruns;
mod speed;
