//! CPU kernels: arithmetic on slices, and the only crate with `unsafe`. Knows shapes, formats and instruction sets; does not know models,
//! requests and files.

mod affinity;
pub mod attention;
mod bus_fault;
mod float_env;
mod formats;
mod layout;
pub mod limits;
pub mod logits_reduce;
pub mod low_rank;
pub mod mapped_file;
pub mod matmul;
mod memory;
mod priority;
pub mod quant;
pub mod recurrent;
pub mod reference;
pub mod rows;
mod simd;
pub mod threads;

pub use simd::{Isa, IsaKind};
