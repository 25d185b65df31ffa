//! Any bytes as the body of each endpoint: refused with a 4xx that has a message, or parsed.

use throng_api::anthropic::Messages;
use throng_api::llama_cpp::InfillEndpoint;
use throng_api::ollama::{Chat, EmbedRequest, Generate, PullRequest, StayRequest};
use throng_api::openai::{DetokenizeRequest, TokenizeRequest, chat, completion};
use throng_api::{ApiError, Dialect, ReadOptions};

/// Panics when the parser violates its contract.
pub fn check(bytes: &[u8]) {
    let _ = StayRequest::peek(bytes);
    for strict_parameters in [false, true] {
        let options = ReadOptions { strict_parameters, ..ReadOptions::default() };
        match chat::parse(bytes, &options) {
            Ok(mut request) => {
                request.ignore_unread_variables(|_| false);
                if let Some(conversation) = request.conversation_mut() {
                    conversation.take_messages_for_template(strict_parameters);
                }
            }
            Err(error) => refusal(Some(error)),
        }
        refusal(completion::parse(bytes, &options).err());
        refusal(TokenizeRequest::parse(bytes, &options).err());
        refusal(DetokenizeRequest::parse(bytes, &options).err());
        refusal(EmbedRequest::parse(bytes, &options).err());
        refusal(EmbedRequest::parse_one(bytes, &options).err());
        refusal(PullRequest::parse(bytes, &options).err());
        let dialects: [&dyn Dialect; 4] = [&Messages, &Chat, &Generate, &InfillEndpoint];
        for dialect in dialects {
            refusal(dialect.parse(bytes, &options).err());
        }
    }
}

fn refusal(error: Option<ApiError>) {
    if let Some(error) = error {
        assert!(error.status().is_client_error(), "{error:?}");
        assert!(!error.message().is_empty());
    }
}
