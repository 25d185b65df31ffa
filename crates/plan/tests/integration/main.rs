//! The tests of `throng-plan` as one program.

mod autoscale;
mod figures;
mod fleets;
mod machines;
mod models;
mod operators;
