//! The bodies and answers of `POST /tokenize` and `POST /detokenize`, in vLLM's form. Does not know
//! tokenizers.

use std::fmt;

use serde::{Serialize, Serializer};
use throng_core::request::TokenId;

use super::conversation::CONVERSATION_FIELDS;
use super::generation_values::TOKENS;
use crate::error::ApiError;
use crate::field::Kind::{Boolean, Custom, ModelName};
use crate::field::{Bound, Field, ReadOptions, Shape, field, read_body};
use crate::ignored::IgnoredParameters;
use crate::spec::Conversation;

const ABOUT_MODEL: &str = "The model whose tokenizer to use.";

/// Input to tokenize.
#[derive(Debug, Clone)]
pub enum TokenizeInput {
    /// A text to tokenize as it is.
    Text {
        /// The text, may be empty.
        prompt: String,
        /// Whether the tokenizer adds its special tokens.
        add_special_tokens: bool,
    },
    /// A conversation, rendered with the chat template first.
    Conversation(Box<Conversation>),
}

/// A checked request to tokenize.
#[derive(Debug, Clone)]
pub struct TokenizeRequest {
    /// Name of the model; `None`: the only served one.
    pub model: Option<String>,
    /// Input to tokenize.
    pub input: TokenizeInput,
    /// Whether to return the tokens' texts too.
    pub return_token_strs: bool,
    /// Unknown parameters.
    pub ignored: IgnoredParameters,
}

/// The parameters of tokenize other than those of a conversation.
#[derive(Debug, Default)]
pub struct TokenizeOptions {
    model: Option<String>,
    prompt: Option<String>,
    return_token_strs: Option<bool>,
}

/// The parameters of tokenize other than those of a conversation.
pub const TOKENIZE_FIELDS: &[Field<TokenizeOptions>] = &[
    field("model", ModelName(|o| &mut o.model), ABOUT_MODEL),
    field(
        "prompt",
        Custom(Shape::Text(usize::MAX), |o, node, _| {
            o.prompt = Some(node.string(usize::MAX)?.into_owned());
            Ok(())
        }),
        "The text to tokenize, instead of messages.",
    ),
    field(
        "return_token_strs",
        Boolean(|o| &mut o.return_token_strs),
        "Give the tokens' texts too; false unless said.",
    ),
];

impl TokenizeRequest {
    /// Reads and checks a body: either `prompt`, or `messages` with the other parameters of a conversation.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse(body: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        let mut own = TokenizeOptions::default();
        let mut conversation = Conversation::default();
        let mut ignored = read_body(
            body,
            &mut [
                &mut Bound { fields: TOKENIZE_FIELDS, target: &mut own },
                &mut Bound { fields: CONVERSATION_FIELDS, target: &mut conversation },
            ],
            options,
        )?;
        conversation.check_together()?;
        ignored.extend(&std::mem::take(&mut conversation.ignored));
        let input = match (own.prompt, conversation.messages.is_empty()) {
            (Some(_), false) => return Err(ApiError::mutually_exclusive("prompt", "messages")),
            (None, true) => return Err(ApiError::missing_required_parameter("prompt")),
            (Some(prompt), true) => {
                let add_special_tokens = conversation.add_special_tokens.unwrap_or(true);
                TokenizeInput::Text { prompt, add_special_tokens }
            }
            (None, false) => TokenizeInput::Conversation(Box::new(conversation)),
        };
        let return_token_strs = own.return_token_strs.unwrap_or(false);
        Ok(Self { model: own.model, input, return_token_strs, ignored })
    }

    /// Drops the client's chat template variables that the template does not read; they become ignored
    /// parameters.
    pub fn ignore_unread_variables(&mut self, is_read: impl Fn(&str) -> bool) {
        if let TokenizeInput::Conversation(conversation) = &mut self.input {
            conversation.ignore_unread_variables(is_read);
            self.ignored.extend(&std::mem::take(&mut conversation.ignored));
        }
    }
}

/// A checked request to detokenize.
#[derive(Debug, Clone, Default)]
pub struct DetokenizeRequest {
    /// Name of the model; `None`: the only served one.
    pub model: Option<String>,
    /// Tokens, may be empty; not yet checked against a vocabulary.
    pub tokens: Vec<TokenId>,
    /// Unknown parameters.
    pub ignored: IgnoredParameters,
}

/// The parameters of detokenize.
#[derive(Debug, Default)]
pub struct DetokenizeOptions {
    model: Option<String>,
    tokens: Option<Vec<TokenId>>,
}

/// The parameters of detokenize.
pub const DETOKENIZE_FIELDS: &[Field<DetokenizeOptions>] = &[
    field("model", ModelName(|o| &mut o.model), ABOUT_MODEL),
    field(
        "tokens",
        Custom(TOKENS, |o, node, _| {
            o.tokens = Some(node.token_ids(usize::MAX)?);
            Ok(())
        }),
        "The token ids.",
    ),
];

impl DetokenizeRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse(body: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        let mut own = DetokenizeOptions::default();
        let mut bound = Bound { fields: DETOKENIZE_FIELDS, target: &mut own };
        let ignored = read_body(body, &mut [&mut bound], options)?;
        let tokens = own.tokens.ok_or_else(|| ApiError::missing_required_parameter("tokens"))?;
        Ok(Self { model: own.model, tokens, ignored })
    }

    /// Checks the tokens against a vocabulary.
    ///
    /// # Errors
    /// `invalid_token`.
    pub fn check(&self, vocabulary_size: u32) -> Result<(), ApiError> {
        match self.tokens.iter().position(|token| *token >= vocabulary_size) {
            Some(idx) => Err(ApiError::invalid_token(format!("tokens[{idx}]"), Some(vocabulary_size))),
            None => Ok(()),
        }
    }
}

/// Texts of tokens, serialized without a copy of all of them.
#[derive(Clone, Copy)]
pub struct TokenStrings<'a> {
    /// Token ids.
    pub tokens: &'a [TokenId],
    /// Function that returns a token's text.
    pub text: &'a dyn Fn(TokenId) -> String,
}

impl Serialize for TokenStrings<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.tokens.iter().map(|&token| (self.text)(token)))
    }
}

impl fmt::Debug for TokenStrings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenStrings").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

/// The answer of tokenize.
#[derive(Debug, Serialize)]
pub struct TokenizeResponse<'a> {
    /// Number of tokens.
    pub count: usize,
    /// Context length of the model in tokens.
    pub max_model_len: u32,
    /// Token ids.
    pub tokens: &'a [TokenId],
    /// Texts of the tokens, if requested.
    pub token_strs: Option<TokenStrings<'a>>,
    /// Places of the images among the tokens, in the order of the images; absent without images.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_spans: Vec<ImageSpan>,
}

/// Tokens of an image in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ImageSpan {
    /// Index of the first token that represents a part of the image.
    pub start: u32,
    /// Number of tokens from the first one to the last one, with the separators between them.
    pub length: u32,
    /// Number of tokens that represent parts of the image, as `image_tokens` of a usage counts them.
    pub n_tokens: u64,
}

/// The answer of detokenize.
#[derive(Debug, Serialize)]
pub struct DetokenizeResponse<'a> {
    /// The detokenized text.
    pub prompt: &'a str,
}
