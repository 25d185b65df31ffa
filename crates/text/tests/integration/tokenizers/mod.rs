//! Tokenizers and detokenizers.

mod detokenizer;
mod gguf_encoders;
mod gguf_vocabulary;
mod hostile_normalizers;
mod infill;
mod original_vocabularies;
mod token_trail;
mod tokenizer_json;
