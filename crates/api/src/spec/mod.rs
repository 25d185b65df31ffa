//! The neutral form of a request to generate text, independent of the API.

mod cache_points;
mod conversation;
mod image;
mod message;
mod options;
mod sampling;
mod several_answers;
mod tools;

use throng_core::request::TokenId;

pub use cache_points::{
    CachePoint, KEEP_SHORT_S, MAX_CACHE_POINTS, PartsBefore, RenderedConversation, ReplacedText,
};
pub use conversation::Conversation;
pub use image::{ImagePart, ImageSource, MAX_IMAGES};
pub(crate) use message::check_replies;
pub use message::{ContentPart, MAX_MESSAGES, MAX_NAME_BYTES, MAX_PARTS, Message, Role, ToolCall};
pub use options::{GenerationOptions, OutputConstraint, ParamNames, StreamOptions, TruncationSide};
pub use sampling::{EncodeWord, ModelFacts, ModelLimits, check_prompt};
pub use several_answers::{beam_bytes, not_with_beams};
pub(crate) use tools::read_function;
pub use tools::{MAX_DESCRIPTION_BYTES, MAX_TOOLS};

/// A checked request for generated text.
#[derive(Debug, Clone)]
pub struct GenerationSpec {
    /// Options for sampling, stopping and reports.
    pub options: GenerationOptions,
    /// Input of the model.
    pub input: Input,
}

/// Input of the model.
#[derive(Debug, Clone)]
pub enum Input {
    /// A conversation, rendered with the model's chat template.
    Chat(Box<ChatInput>),
    /// Prompts without a chat template.
    Prompts(PromptsInput),
}

/// A conversation with the rules for its answer.
#[derive(Debug, Clone, Default)]
pub struct ChatInput {
    /// Conversation for the chat template.
    pub conversation: Conversation,
    /// Whether the model may call the conversation's tools.
    pub calls_tools: bool,
    /// Whether the answer must consist of calls.
    pub must_call: bool,
    /// Name of the only allowed function.
    pub chosen_function: Option<String>,
    /// Whether only the first call of an answer counts.
    pub only_first_call: bool,
    /// Whether the reasoning is part of the answer.
    pub shows_reasoning: bool,
}

/// Prompts without a chat template, at least one. Their answers are numbered across all prompts.
#[derive(Debug, Clone)]
pub struct PromptsInput {
    /// The prompts, each answered separately.
    pub prompts: Vec<Prompt>,
    /// Whether the tokenizer adds special tokens to a text.
    pub add_special_tokens: bool,
    /// Whether the answer repeats the prompts' texts.
    pub repeats_texts: bool,
}

/// A prompt without a chat template: text or token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text; may be empty if the tokenizer starts every text with a token.
    Text(String),
    /// Tokens, at least one; not yet checked against a vocabulary.
    Tokens(Vec<TokenId>),
    /// Texts around a gap for the model to fill.
    Infill(Box<Infill>),
}

/// A gap in a text, for fill-in-the-middle models.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Infill {
    /// Text before the gap.
    pub before: String,
    /// Text after the gap.
    pub behind: String,
    /// Names and texts of additional files as context.
    pub files: Vec<(String, String)>,
    /// Parameter that requested it.
    pub param: &'static str,
}

impl Infill {
    /// Total bytes of all texts.
    pub fn text_bytes(&self) -> usize {
        let of_files: usize = self.files.iter().map(|(name, text)| name.len() + text.len()).sum();
        self.before.len() + self.behind.len() + of_files
    }
}

impl GenerationSpec {
    /// The conversation, if the input is one.
    pub fn conversation(&self) -> Option<&Conversation> {
        match &self.input {
            Input::Chat(chat) => Some(&chat.conversation),
            Input::Prompts(_) => None,
        }
    }

    /// The conversation, mutable so that its texts can be taken.
    pub fn conversation_mut(&mut self) -> Option<&mut Conversation> {
        match &mut self.input {
            Input::Chat(chat) => Some(&mut chat.conversation),
            Input::Prompts(_) => None,
        }
    }

    /// Drops the client's template variables that the template does not read; they become ignored
    /// parameters.
    pub fn ignore_unread_variables(&mut self, is_read: impl Fn(&str) -> bool) {
        if let Input::Chat(chat) = &mut self.input {
            chat.conversation.ignore_unread_variables(is_read);
            self.options.ignored.extend(&std::mem::take(&mut chat.conversation.ignored));
        }
    }

    /// Whether preparing the request takes about as long as reading it: there is nothing to compile, and the
    /// chat template gets only messages.
    pub fn is_quick(&self) -> bool {
        self.options.has_free_output()
            && self.conversation().is_none_or(|chat| chat.is_plain() && chat.images().next().is_none())
    }
}
