//! The errors of this crate. Does not know HTTP statuses: the gateway maps these.

/// Reason why a tokenizer could not be built from its files. Always the file's fault, never a request's.
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
    /// Longer than any prompt that could fit the context; refused before it is tokenized.
    #[error("the text has {n_bytes} bytes, more than the {limit_bytes} a prompt of this model can have")]
    TooLong {
        /// Bytes of the text.
        n_bytes: usize,
        /// Bytes allowed.
        limit_bytes: usize,
    },
    /// The tokenizer library returned an error.
    #[error("the text could not be tokenized: {0}")]
    Encode(String),
    /// The caller no longer wants the tokens.
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
    /// The template used more steps, memory or output than it may.
    #[error("the chat template exceeded its {limit}")]
    Exhausted {
        /// Name of the limit: `"steps"`, `"memory"` or `"depth"`.
        limit: &'static str,
    },
    /// `chat_template_kwargs` names a variable that the server sets itself.
    #[error("chat_template_kwargs may not set {name:?}")]
    ReservedArgument {
        /// The offending key.
        name: String,
    },
    /// `continue_final_message` without a final message that can be continued.
    #[error("continue_final_message: {0}")]
    NothingToContinue(String),
    /// The model has no template of that name.
    #[error("the model has no chat template named {0:?}")]
    UnknownTemplate(String),
}
