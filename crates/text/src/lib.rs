//! Text outside the engine: tokenizers, chat templates, incremental detokenizing. Refuses to know requests,
//! HTTP and models; nothing below the gateway sees what is in here.
#![forbid(unsafe_code)]

mod detokenizer;
mod disguise;
mod error;
mod tokenizer;

pub use detokenizer::{Delta, DetokenizeOptions, Detokenizer};
pub use error::{TemplateError, TextError, TokenizerError};
pub use tokenizer::{EncodeOptions, GgufVocabulary, Tokenizer, TokenizerConfig};
