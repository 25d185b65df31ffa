//! Text outside the engine: tokenizers, chat templates, incremental detokenizing. Does not know requests,
//! HTTP and models; nothing below the gateway sees what is in here.
#![forbid(unsafe_code)]

mod chat_template;
mod detokenizer;
mod disguise;
mod error;
mod rendered_prompt;
mod tokenizer;

pub use chat_template::{ChatTemplate, TemplateInput};
pub use detokenizer::{Delta, DetokenizeOptions, Detokenizer};
pub use error::{TemplateError, TextError, TokenizerError};
pub use rendered_prompt::RenderedPrompt;
pub use tokenizer::{EncodeOptions, GgufVocabulary, SpecialTokens, Tokenizer, TokenizerConfig};
