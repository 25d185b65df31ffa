//! Text processing outside of the engine: tokenizers, chat templates, incremental detokenizing, answer
//! parsing, grammars. Does not know requests, HTTP and models.
#![forbid(unsafe_code)]

mod answer_parser;
mod chat_template;
mod decimal;
mod detokenizer;
mod disguise;
mod error;
pub mod exact_number;
pub mod generic_tools;
pub mod grammar;
pub mod moderation;
mod reasoning;
mod rendered_prompt;
mod tokenizer;
mod tool_calls;

pub use answer_parser::{AnswerFormat, AnswerParser, ParseOptions};
pub use chat_template::{ChatTemplate, TemplateInput};
pub use detokenizer::{Delta, DetokenizeOptions, Detokenizer};
pub use error::{TemplateError, TextError, TokenizerError};
pub use reasoning::{ReasoningFormat, ThinkingBudget};
pub use rendered_prompt::RenderedPrompt;
pub use tokenizer::{
    ConvertedVocabulary, EncodeOptions, GgufEncoderKeys, GgufInfillKeys, GgufVocabulary, InfillText,
    InfillTokens, OriginalVocabulary, PairFrame, PromptTrail, SpecialTokens, TokenTrail, Tokenizer,
    TokenizerConfig, TrailPart,
};
pub use tool_calls::{AnswerEvent, ToolCallFormat, ToolSchemas};
