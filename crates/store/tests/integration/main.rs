//! The tests of `throng-store` as one program, which is linked once. Tests that need a process of their own
//! are programs beside it.

mod files;
mod postgres;
mod sqlite;
mod suite;
