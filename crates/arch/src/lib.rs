//! Architectures as data: the content of a model's `config.json` or GGUF metadata, as the one value that a
//! forward pass reads. Does not know devices, weights and how anything is computed.
#![forbid(unsafe_code)]

pub mod config;
pub mod families;
pub mod python_json;
