//! Every family against reference implementations.

mod gguf_encoders;
mod gguf_exact;
mod gguf_families;
pub mod golden;
mod golden_embeddings;
mod longrope;
mod shards;
mod spellings;
mod truncated;
