//! The tests of `throng-state` as one program, over a real SQLite database.

mod batches;
mod files;
mod responses;
