//! CPU kernels: arithmetic on slices, with `unsafe` for the instruction sets and for buffers that threads
//! share. Knows shapes, formats and instruction sets; does not know models, requests and files.

pub mod attention;
mod disjoint;
mod float_env;
mod formats;
mod layout;
pub mod limits;
pub mod logits_reduce;
pub mod low_rank;
pub mod matmul;
pub mod quant;
pub mod recurrent;
pub mod reference;
pub mod relative;
pub mod rows;
mod simd;
pub mod threads;

pub use simd::{Isa, IsaKind};
