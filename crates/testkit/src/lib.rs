//! What the tests share. A dev-dependency only; it refuses to be part of any program.
#![forbid(unsafe_code)]

pub mod backend_suite;
pub mod paper_constraint;
pub mod paper_executor;
pub mod tiny_model;
