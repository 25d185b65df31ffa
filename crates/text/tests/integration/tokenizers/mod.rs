//! Tokenizers and detokenizers.

mod detokenizer;
mod gguf_encoders;
mod gguf_vocabulary;
mod hostile_normalizers;
mod infill;
mod tokenizer_json;
