//! Capacity planning: machines, models and cost models, and the search for the fleet that a load needs.
#![forbid(unsafe_code)]
