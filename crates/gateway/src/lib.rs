//! Under construction.
#![forbid(unsafe_code)]

pub mod openai;
