//! Conversations that are too long: the oldest turns are left out until the rest fits, where the request
//! allows it. Does not know templates.

use throng_api::ApiError;
use throng_api::spec::{Conversation, GenerationOptions, Message, Role};
use throng_text::Tokenizer;

use super::prepare::{EncodedConversation, PrepareContext, encode_conversation};
use crate::served_model::ModelEntry;

/// Without a wish, this part of the context stays free for the answer.
const FREE_PART: u32 = 8;

/// The tokens of a conversation; of one that may be shortened, as many of its latest turns as leave room for
/// the answer.
///
/// # Errors
/// Those of [`encode_conversation`], if not even the latest turn fits.
pub(super) fn encode_fitting(
    model: &ModelEntry,
    tokenizer: &Tokenizer,
    conversation: &mut Conversation,
    options: &GenerationOptions,
    scope: &PrepareContext<'_>,
) -> Result<EncodedConversation, ApiError> {
    let encode = |conversation: &mut Conversation| {
        let param = options.names.prompt;
        encode_conversation(model, tokenizer, conversation, param, scope.memory, scope.abandoned)
    };
    if !conversation.may_drop_turns {
        return encode(conversation);
    }
    let max_len = model.limits().max_model_len;
    let n_free = options.max_tokens.and_then(|n| u32::try_from(n).ok()).unwrap_or(max_len / FREE_PART);
    let room = max_len.saturating_sub(n_free.min(max_len / 2)) as usize;
    let whole = conversation.clone();
    let starts = turn_starts(&whole.messages);
    let mut encode_from = |start: usize| {
        *conversation = whole.clone();
        drop_before(&mut conversation.messages, start);
        match encode(conversation) {
            Ok(encoded) => Ok((encoded.tokens.len() <= room).then_some(encoded)),
            Err(error) if error.code() == "context_length_exceeded" => Ok(None),
            Err(error) => Err(error),
        }
    };
    if let Some(encoded) = encode_from(starts[0])? {
        return Ok(encoded);
    }
    // What fits with some turns left out fits with more left out.
    let (mut low, mut high, mut found) = (1, starts.len(), None);
    while low < high {
        let middle = low.midpoint(high);
        match encode_from(starts[middle])? {
            Some(encoded) => (high, found) = (middle, Some(encoded)),
            None => low = middle + 1,
        }
    }
    if let Some(encoded) = found {
        return Ok(encoded);
    }
    *conversation = whole.clone();
    drop_before(&mut conversation.messages, starts[starts.len() - 1]);
    encode(conversation)
}

/// Where turns begin that may be the first one that is left in: each message of the user, the first of which
/// stands for leaving nothing out.
fn turn_starts(messages: &[Message]) -> Vec<usize> {
    let n_instructions = n_instructions(messages);
    let users = messages.iter().enumerate().skip(n_instructions + 1);
    let later = users.filter(|(_, message)| message.role == Role::User).map(|(idx, _)| idx);
    std::iter::once(n_instructions).chain(later).collect()
}

fn n_instructions(messages: &[Message]) -> usize {
    let is_instruction = |message: &&Message| matches!(message.role, Role::System | Role::Developer);
    messages.iter().take_while(is_instruction).count()
}

/// Leaves out what stands between the instructions and `start`.
fn drop_before(messages: &mut Vec<Message>, start: usize) {
    let n_kept = n_instructions(messages).min(start);
    messages.drain(n_kept..start);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_begin_with_the_user_behind_the_instructions() {
        let roles =
            [Role::System, Role::User, Role::Assistant, Role::Tool, Role::User, Role::Assistant, Role::User];
        let mut messages: Vec<_> = roles.iter().map(|role| Message::new(*role, Vec::new())).collect();
        assert_eq!(turn_starts(&messages), [1, 4, 6]);
        drop_before(&mut messages, 4);
        let left: Vec<_> = messages.iter().map(|message| message.role).collect();
        assert_eq!(left, [Role::System, Role::User, Role::Assistant, Role::User]);
    }
}
