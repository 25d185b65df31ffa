//! Arithmetic on slices: the only CPU code with `unsafe`. It knows shapes, formats and instruction sets, and
//! refuses to know models, requests and files.

pub mod mapped_file;
pub mod quant;
pub mod reference;
