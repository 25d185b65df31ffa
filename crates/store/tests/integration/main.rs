//! The tests of `throng-store` as one program, which is linked once. Tests that need a process of their own
//! are programs beside it.

// Before the others, which use its macro.
#[macro_use]
mod suite;

mod files;
mod postgres;
mod sqlite;
