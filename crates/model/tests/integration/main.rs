//! The tests of `throng-model` as one program, which is linked once. Tests that need a process of their own
//! are programs beside it.

mod draft_harness;
mod families;
mod files;
mod generation;
mod harness;
mod models;
mod parallel;
mod vectors;
