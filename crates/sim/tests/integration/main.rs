//! Tests of whole runs.
#![allow(missing_docs)]

mod composed;
mod eviction;
mod fleets;
mod queueing;
mod rerun;
mod reruns;
mod whole_batches;
