//! Errors of this crate. Does not know HTTP statuses.

/// Reason why a tokenizer could not be built from its files. The fault is always in the files, never in a
/// request.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// `tokenizer.json` or `tokenizer_config.json` is not JSON or lacks what the format requires.
    #[error("malformed tokenizer: {0}")]
    Malformed(String),
    /// Well-formed, but of an unsupported kind.
    #[error("unsupported tokenizer: {0}")]
    Unsupported(String),
}

/// Reason why a text could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The text is longer than any prompt that fits the context; it was not tokenized.
    #[error("the text has {n_bytes} bytes, more than the {limit_bytes} a prompt of this model can have")]
    TooLong {
        /// Length of the text in bytes.
        n_bytes: usize,
        /// Maximum length in bytes.
        limit_bytes: usize,
    },
    /// The tokenizer library returned an error.
    #[error("the text could not be tokenized: {0}")]
    Encode(String),
    /// The caller no longer needs the tokens.
    #[error("the caller no longer wants the tokens")]
    Stopped,
}

/// Reason why a chat template could not be loaded or rendered.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template does not parse.
    #[error("chat template: {0}")]
    Syntax(String),
    /// The template rejected the conversation (`raise_exception`).
    #[error("{0}")]
    Refused(String),
    /// The template failed on the conversation: a missing field, a value of the wrong type.
    #[error("the chat template cannot render these messages: {0}")]
    Render(String),
    /// The template exceeded a limit on steps, memory or output.
    #[error("the chat template exceeded its {limit}")]
    Exhausted {
        /// Name of the limit: `"steps"`, `"memory"` or `"depth"`.
        limit: &'static str,
    },
    /// `chat_template_kwargs` names a variable that the server sets itself.
    #[error("chat_template_kwargs may not set {name:?}")]
    ReservedArgument {
        /// Name of the variable.
        name: String,
    },
    /// `continue_final_message` is set, but the last message cannot be continued.
    #[error("continue_final_message: {0}")]
    NothingToContinue(String),
    /// The model has no template of that name.
    #[error("the model has no chat template named {0:?}")]
    UnknownTemplate(String),
}
