//! Arithmetic on slices: the only CPU code with `unsafe`. It knows shapes, formats and instruction sets, and
//! refuses to know models, requests and files.

mod affinity;
pub mod attention;
mod bus_fault;
mod float_env;
pub mod limits;
pub mod mapped_file;
pub mod matmul;
mod memory;
pub mod quant;
pub mod reference;
pub mod rows;
mod simd;
pub mod threads;
pub mod vocabulary;

pub use simd::Isa;
