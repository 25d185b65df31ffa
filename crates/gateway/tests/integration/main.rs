//! The tests of `throng-gateway` as one program, which is linked once. Tests that need a process of their own
//! are programs beside it.

mod api;
mod bad_input;
mod configuration;
mod faulty_engine;
mod fleet;
mod harness;
mod http;
mod policy;
mod running_worker;
