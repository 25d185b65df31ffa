//! The tests of `throng-testkit` as one program, which is linked once. Tests that need a process of their own
//! are programs beside it.

mod example_backend;
mod golden;
mod llama_backend;
mod stages;
mod steps_in_flight;
