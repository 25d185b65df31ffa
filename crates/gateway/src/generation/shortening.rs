//! Shortening of conversations that are too long: the oldest turns are dropped until the rest fits, if the
//! request allows it. Does not know templates.

use throng_api::ApiError;
use throng_api::spec::{Conversation, GenerationOptions, Message, Role};

/// Divisor of the context that gives the tokens reserved for the answer of a request without a limit.
const FREE_PART: u32 = 8;

/// Maximum number of prompt tokens that leaves room for the answer.
pub(super) fn room_for_prompt(options: &GenerationOptions, max_model_len: u32) -> usize {
    let wanted = options.max_tokens.and_then(|n| u32::try_from(n).ok());
    let n_free = wanted.unwrap_or(max_model_len / FREE_PART);
    max_model_len.saturating_sub(n_free.min(max_model_len / 2)) as usize
}

/// Encodes a conversation. If it may be shortened, keeps the latest turns that have at most `room` tokens
/// together, counted by `n_tokens`.
///
/// # Errors
/// Errors of `encode`, if not even the latest turn fits.
pub(super) fn encode_fitting<T>(
    conversation: &mut Conversation,
    room: usize,
    n_tokens: impl Fn(&T) -> usize,
    mut encode: impl FnMut(&mut Conversation) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    if !conversation.may_drop_turns {
        return encode(conversation);
    }
    let whole = conversation.clone();
    let starts = turn_starts(&whole.messages);
    let mut encode_from = |start: usize| {
        *conversation = whole.clone();
        drop_before(&mut conversation.messages, start);
        encode(conversation)
    };
    let mut fitting = |start: usize| match encode_from(start) {
        Ok(encoded) => Ok((n_tokens(&encoded) <= room).then_some(encoded)),
        Err(error) if error.code() == "context_length_exceeded" => Ok(None),
        Err(error) => Err(error),
    };
    if let Some(encoded) = fitting(starts[0])? {
        return Ok(encoded);
    }
    // What fits with some turns left out fits with more left out.
    let (mut low, mut high, mut found) = (1, starts.len(), None);
    while low < high {
        let middle = low.midpoint(high);
        match fitting(starts[middle])? {
            Some(encoded) => (high, found) = (middle, Some(encoded)),
            None => low = middle + 1,
        }
    }
    found.map_or_else(|| encode_from(starts[starts.len() - 1]), Ok)
}

/// Indices of the user's messages, each of which may be the first one kept; with the first one, no message is
/// dropped.
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

/// Drops the messages between the instructions and `start`.
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
