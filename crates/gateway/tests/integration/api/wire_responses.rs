//! Answers and chunks, byte for byte.

use serde::Serialize;
use throng_api::openai::chat_response::{
    AssistantMessage, CalledTool, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta,
};
use throng_api::openai::completion_response::{
    AskedOfChoice, Completion, CompletionChoice, CompletionChunk, CompletionChunkChoice, EchoedText,
};
use throng_api::openai::logprobs::{
    ChatLogprobs, CompletionLogprobs, CompletionToken, PromptLogprobs, TokenSpelling,
};
use throng_api::openai::models;
use throng_api::openai::response::{Envelope, Finish, SYSTEM_FINGERPRINT, chat_id};
use throng_api::openai::usage::Usage;
use throng_api::spec::StreamOptions;
use throng_core::request::{FinishReason, TokenId};
use throng_core::scheduling::batch::TokenLogprob;
use throng_fleet::replica::TokenReport;

const ENVELOPE: Envelope<'_> = Envelope { id: "chatcmpl-1", created: 7, model: "m" };

fn bytes_of(token: TokenId) -> Option<&'static [u8]> {
    [b"a".as_slice(), b" b", b"\xf0\x9f", b"\xf0\x9f"].get(token as usize).copied()
}

fn spelling<'a>(as_token_ids: bool) -> TokenSpelling<'a> {
    TokenSpelling { bytes_of: &|token| bytes_of(token), as_token_ids }
}

fn report(token: TokenId, logprob: f32, rank: u32, top: &[(TokenId, f32)]) -> TokenReport {
    let top = (1..).zip(top).map(|(rank, (token, logprob))| TokenLogprob {
        token: *token,
        logprob: *logprob,
        rank,
    });
    TokenReport { chosen: TokenLogprob { token, logprob, rank }, top: top.collect() }
}

#[track_caller]
fn json(value: &impl Serialize, expected: &str) {
    let expected = expected.replace("FP", SYSTEM_FINGERPRINT);
    assert_eq!(serde_json::to_string(value).expect("answers serialise"), expected);
}

#[test]
fn a_chat_is_answered_in_openais_order() {
    let reports = [report(1, -0.5, 2, &[(0, -0.25), (1, -0.5)])];
    let logprobs = ChatLogprobs { reports: &reports, spelling: spelling(false) };
    let finish = Finish::new(FinishReason::Stop { token: None }, None);
    let choice = ChatChoice::new(0, AssistantMessage::text("b\n"), finish, Some(logprobs), Some(vec![1]));
    json(
        &ChatCompletion::new(&ENVELOPE, vec![choice], Usage::new(5, 1, 4), None, Some(&[9])),
        r#"{"id":"chatcmpl-1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"b\n","refusal":null},"logprobs":{"content":[{"token":" b","logprob":-0.5,"bytes":[32,98],"top_logprobs":[{"token":"a","logprob":-0.25,"bytes":[97]},{"token":" b","logprob":-0.5,"bytes":[32,98]}]}],"refusal":null},"finish_reason":"stop","stop_reason":null,"token_ids":[1]}],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":0}},"system_fingerprint":"FP","prompt_token_ids":[9]}"#,
    );
}

#[test]
fn calls_and_reasoning_are_written_as_clients_read_them() {
    let call = CalledTool::whole("call_1", "now", "{}");
    let calls =
        r#""tool_calls":[{"id":"call_1","type":"function","function":{"name":"now","arguments":"{}"}}]"#;
    let thought = r#""reasoning":"Hm.","reasoning_content":"Hm.""#;
    json(
        &AssistantMessage::new("", "Hm.", vec![call]),
        &format!(r#"{{"role":"assistant","content":null,"refusal":null,{thought},{calls}}}"#),
    );
    json(&AssistantMessage::text(""), r#"{"role":"assistant","content":"","refusal":null}"#);
    json(&ChatDelta::reasoning("Hm."), &format!("{{{thought}}}"));
    json(
        &ChatDelta::call(CalledTool::begun(1, "call_1", "now")),
        r#"{"tool_calls":[{"index":1,"id":"call_1","type":"function","function":{"name":"now","arguments":""}}]}"#,
    );
    json(
        &ChatDelta::call(CalledTool::more(1, "{}")),
        r#"{"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]}"#,
    );
    let finish = |reason| Finish::new(reason, None).with_calls().reason;
    assert_eq!(
        [finish(FinishReason::Stop { token: None }), finish(FinishReason::Length)],
        ["tool_calls", "length"]
    );
}

#[test]
fn chat_chunks_have_the_role_the_text_the_finish_reason_and_the_usage() {
    let head = r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","system_fingerprint":"FP","choices":"#;
    let told = StreamOptions { include_usage: true, ..Default::default() };
    let so_far = || Usage::new(5, 1, 0);
    let usage = r#"{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}"#;
    json(
        &ChatChunk::new(&ENVELOPE, ChatChunkChoice::first(1), StreamOptions::default().chunk_usage(so_far)),
        &format!(
            "{head}{}",
            r#"[{"index":1,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#
        ),
    );
    json(
        &ChatChunk::new(
            &ENVELOPE,
            ChatChunkChoice::new(0, ChatDelta::content(Some("b")), None, None, Some(&[1])),
            told.chunk_usage(so_far),
        ),
        &format!(
            "{head}{}",
            r#"[{"index":0,"delta":{"content":"b"},"logprobs":null,"finish_reason":null,"token_ids":[1]}],"usage":null}"#
        ),
    );
    let each = StreamOptions { include_usage: true, continuous_usage_stats: true, ..Default::default() };
    let finish = Finish::new(FinishReason::Abort, Some("END"));
    json(
        &ChatChunk::new(
            &ENVELOPE,
            ChatChunkChoice::new(0, ChatDelta::content(None), Some(finish), None, None),
            each.chunk_usage(so_far),
        ),
        &format!(
            r#"{head}[{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"stop","stop_reason":"END"}}],"usage":{usage}}}"#
        ),
    );
    json(&ChatChunk::of_usage(&ENVELOPE, Some(so_far()), None), &format!(r#"{head}[],"usage":{usage}}}"#));
}

#[test]
fn a_text_completion_reports_each_token_once() {
    let reports = [report(2, f32::NEG_INFINITY, 9, &[(3, -1.0), (0, -2.0)])];
    let tokens = vec![
        CompletionToken { token: 0, report: None, text_offset: 0 },
        CompletionToken { token: 2, report: Some(&reports[0]), text_offset: 1 },
    ];
    let logprobs = CompletionLogprobs { echoed: &[], tokens, spelling: spelling(false) };
    let asked = AskedOfChoice {
        prompt_logprobs: Some(PromptLogprobs { reports: &reports, spelling: spelling(true) }),
        ..AskedOfChoice::default()
    };
    let finish = Finish::new(FinishReason::Stop { token: Some(2) }, None);
    let choice =
        CompletionChoice::new(3, EchoedText { prompt: "", answer: "a" }, finish, Some(logprobs), asked);
    json(
        &Completion::new(&ENVELOPE, vec![choice], Usage::new(1, 1, 0)),
        "{\"id\":\"chatcmpl-1\",\"object\":\"text_completion\",\"created\":7,\"model\":\"m\",\"choices\":[{\"text\":\"a\",\"index\":3,\"logprobs\":{\"tokens\":[\"a\",\"\u{fffd}\"],\"token_logprobs\":[null,-9999.0],\"top_logprobs\":[null,{\"\u{fffd}\":-1.0,\"a\":-2.0}],\"text_offset\":[0,1]},\"finish_reason\":\"stop\",\"stop_reason\":2,\"prompt_logprobs\":[null,{\"2\":{\"logprob\":-9999.0,\"rank\":9,\"decoded_token\":\"token_id:2\"},\"3\":{\"logprob\":-1.0,\"rank\":1,\"decoded_token\":\"token_id:3\"},\"0\":{\"logprob\":-2.0,\"rank\":2,\"decoded_token\":\"token_id:0\"}}]}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1,\"total_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":0},\"completion_tokens_details\":{\"reasoning_tokens\":0}},\"system_fingerprint\":\"FP\"}",
    );
    let finish = Some(Finish::new(FinishReason::Length, None));
    json(
        &CompletionChunk::new(&ENVELOPE, CompletionChunkChoice::new(0, "x", finish, None, None), None),
        r#"{"id":"chatcmpl-1","object":"text_completion","created":7,"model":"m","system_fingerprint":"FP","choices":[{"text":"x","index":0,"logprobs":null,"finish_reason":"length","stop_reason":null}]}"#,
    );
}

#[test]
fn request_ids_are_the_clients_or_generated() {
    assert_eq!(chat_id(Some("mine")), "chatcmpl-mine");
    assert_eq!(chat_id(None).len(), "chatcmpl-".len() + 32);
    assert_ne!(chat_id(None), chat_id(None));
}

#[test]
fn a_model_has_the_fields_that_clients_expect() {
    let card = serde_json::to_value(models::ModelCard::new("m", "org/m", None, 7, Some(4096))).expect("JSON");
    assert_eq!((&card["object"], &card["root"]), (&"model".into(), &"org/m".into()));
    assert_eq!(card["max_model_len"], 4096);
    assert_eq!(card["permission"][0]["object"], "model_permission");
    assert!(card["parent"].is_null());
}
