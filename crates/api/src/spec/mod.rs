//! The neutral form of a request: what is to be generated, whichever API asked for it.

mod conversation;
mod message;
mod options;
mod sampling;
mod several_answers;
mod tools;

use throng_core::request::TokenId;

pub use conversation::Conversation;
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
    /// How to sample, when to stop, what to report.
    pub options: GenerationOptions,
    /// What the model is given.
    pub input: Input,
}

/// What the model is given.
#[derive(Debug, Clone)]
pub enum Input {
    /// A conversation, as the model's chat template writes it.
    Chat(Box<ChatInput>),
    /// Prompts as they are.
    Prompts(PromptsInput),
}

/// A conversation, and what its answer may consist of.
#[derive(Debug, Clone, Default)]
pub struct ChatInput {
    /// What the chat template is given.
    pub conversation: Conversation,
    /// The model may call the conversation's tools.
    pub calls_tools: bool,
    /// The answer must be calls.
    pub must_call: bool,
    /// The only function that it may call.
    pub chosen_function: Option<String>,
    /// Only the first call of an answer counts.
    pub only_first_call: bool,
    /// The reasoning is part of the answer.
    pub shows_reasoning: bool,
}

/// Prompts as they are, at least one. Their answers are numbered through.
#[derive(Debug, Clone)]
pub struct PromptsInput {
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// Whether the tokenizer adds special tokens to a text.
    pub add_special_tokens: bool,
    /// Whether the answer repeats the prompts' texts.
    pub repeats_texts: bool,
}

/// One prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text, perhaps empty: fine where the tokenizer begins every text with a token.
    Text(String),
    /// Tokens, at least one; not yet checked against a vocabulary.
    Tokens(Vec<TokenId>),
    /// Texts around a gap that the model fills.
    Infill(Box<Infill>),
}

/// A gap, for models that fill in the middle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Infill {
    /// The text before the gap.
    pub before: String,
    /// The text behind the gap.
    pub behind: String,
    /// Names and texts of further files that help to fill it.
    pub files: Vec<(String, String)>,
    /// The parameter that asks for it.
    pub param: &'static str,
}

impl Infill {
    /// Bytes of all texts.
    pub fn text_bytes(&self) -> usize {
        let of_files: usize = self.files.iter().map(|(name, text)| name.len() + text.len()).sum();
        self.before.len() + self.behind.len() + of_files
    }
}

impl GenerationSpec {
    /// The conversation, where it has one.
    pub fn conversation(&self) -> Option<&Conversation> {
        match &self.input {
            Input::Chat(chat) => Some(&chat.conversation),
            Input::Prompts(_) => None,
        }
    }

    /// The conversation, to take its texts out of.
    pub fn conversation_mut(&mut self) -> Option<&mut Conversation> {
        match &mut self.input {
            Input::Chat(chat) => Some(&mut chat.conversation),
            Input::Prompts(_) => None,
        }
    }

    /// Drops the client's template variables that are not read; they are among the ignored parameters then.
    pub fn ignore_unread_variables(&mut self, is_read: impl Fn(&str) -> bool) {
        if let Input::Chat(chat) = &mut self.input {
            chat.conversation.ignore_unread_variables(is_read);
            self.options.ignored.extend(&std::mem::take(&mut chat.conversation.ignored));
        }
    }

    /// Whether preparing it takes about as long as reading it: nothing in it is compiled, and a chat template
    /// is given nothing but messages.
    pub fn is_quick(&self) -> bool {
        self.options.has_free_output() && self.conversation().is_none_or(Conversation::is_plain)
    }
}
