//! Code shared by the tests. A dev-dependency only; never part of the product.
#![forbid(unsafe_code)]

pub mod answers;
pub mod backend_suite;
pub mod beam_reference;
pub mod example_backend;
pub mod fault_proxy;
pub mod golden;
pub mod invisibility;
pub mod llama_backend;
pub mod nightly;
pub mod one_sequence;
pub mod paper_constraint;
pub mod paper_executor;
mod paper_states;
pub mod postgres;
pub mod redis;
mod rotation;
pub mod shared_files;
pub mod small_disk;
pub mod tiny_model;
