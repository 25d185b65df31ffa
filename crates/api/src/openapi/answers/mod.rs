//! The schemas of answers for the OpenAPI document. They list all members, so that a test that compares
//! real answers with them finds undocumented ones. Does not know how answers are generated.

mod kept;
mod others;

use serde_json::{Map, Value, json};

use self::kept::kept;
use self::others::{models, operator, pooling, texts, usage_pages};

/// All schemas by name.
pub(super) fn schemas() -> Map<String, Value> {
    let all =
        [logprobs(), generation(), chunks(), pooling(), models(), usage_pages(), texts(), kept(), operator()];
    all.into_iter().flatten().map(|(name, schema)| (name.to_owned(), schema)).collect()
}

type Named = Vec<(&'static str, Value)>;

fn text() -> Value {
    json!({"type": "string"})
}

fn whole() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn number() -> Value {
    json!({"type": "number"})
}

fn boolean() -> Value {
    json!({"type": "boolean"})
}

fn one_of(names: &[&str]) -> Value {
    json!({"type": "string", "enum": names})
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn map(values: Value) -> Value {
    json!({"type": "object", "additionalProperties": values})
}

fn named(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn or_null(schema: Value) -> Value {
    json!({"anyOf": [schema, {"type": "null"}]})
}

/// The schema of an object with required and optional members.
fn object<const N: usize, const M: usize>(
    members: [(&str, Value); N],
    optional: [(&str, Value); M],
) -> Value {
    let required: Vec<&str> = members.iter().map(|member| member.0).collect();
    let properties: Map<String, Value> =
        members.into_iter().chain(optional).map(|(name, schema)| (name.to_owned(), schema)).collect();
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn finish_reason() -> Value {
    one_of(&["stop", "length", "tool_calls", "content_filter", "abort", "error"])
}

/// The schema of `stop_reason`: a stop string or a token id.
fn stop_reason() -> Value {
    json!({"type": ["string", "integer", "null"]})
}

/// Schemas of the log-probabilities of chats, text completions and prompts.
fn logprobs() -> Named {
    let token = || [("token", text()), ("logprob", number()), ("bytes", or_null(list(whole())))];
    let [name, logprob, bytes] = token();
    let reported = object([name, logprob, bytes, ("top_logprobs", list(object(token(), [])))], []);
    let chat_logprobs = object([("content", list(reported)), ("refusal", json!({"type": "null"}))], []);
    let completion_logprobs = object(
        [
            ("text_offset", list(whole())),
            ("token_logprobs", list(or_null(number()))),
            ("tokens", list(text())),
            ("top_logprobs", or_null(list(or_null(map(number()))))),
        ],
        [],
    );
    let position = object([("logprob", number()), ("rank", whole()), ("decoded_token", or_null(text()))], []);
    vec![
        ("ChatLogprobs", chat_logprobs),
        ("CompletionLogprobs", completion_logprobs),
        ("PromptLogprobs", list(or_null(map(position)))),
    ]
}

fn generation() -> Named {
    let usage = object(
        [
            ("prompt_tokens", whole()),
            ("completion_tokens", whole()),
            ("total_tokens", whole()),
            ("prompt_tokens_details", object([("cached_tokens", whole())], [("image_tokens", whole())])),
            ("completion_tokens_details", object([("reasoning_tokens", whole())], [])),
        ],
        [],
    );
    let function = object([("name", text()), ("arguments", text())], []);
    let call = object([("id", text()), ("type", one_of(&["function"])), ("function", function)], []);
    let message = object(
        [("role", one_of(&["assistant"])), ("content", or_null(text())), ("refusal", or_null(text()))],
        [("reasoning", text()), ("reasoning_content", text()), ("tool_calls", list(named("ToolCall")))],
    );
    let choice = |what: (&str, Value), logprobs: &str, more: [(&str, Value); 2]| {
        let [first, second] = more;
        object(
            [
                what,
                ("index", whole()),
                ("logprobs", or_null(named(logprobs))),
                ("finish_reason", finish_reason()),
                ("stop_reason", stop_reason()),
            ],
            [("token_ids", list(whole())), first, second],
        )
    };
    let of_prompt = || [("prompt_logprobs", named("PromptLogprobs")), ("prompt_token_ids", list(whole()))];
    let answer = |kind: &str, choice: Value, more: [(&str, Value); 2]| {
        object(
            [
                ("id", text()),
                ("object", one_of(&[kind])),
                ("created", whole()),
                ("model", text()),
                ("choices", list(choice)),
                ("usage", named("Usage")),
                ("system_fingerprint", text()),
            ],
            more,
        )
    };
    let chat_choice = choice(("message", message), "ChatLogprobs", of_prompt());
    let text_choice = choice(("text", text()), "CompletionLogprobs", of_prompt());
    vec![
        ("Usage", usage),
        ("ToolCall", call),
        ("ChatCompletion", answer("chat.completion", chat_choice, of_prompt())),
        ("Completion", answer("text_completion", text_choice, of_prompt())),
    ]
}

fn chunks() -> Named {
    let timings = object(
        [("cache_n", whole()), ("prompt_n", whole()), ("predicted_n", whole())],
        ["prompt_ms", "prompt_per_second", "predicted_ms", "predicted_per_second", "queue_ms"]
            .map(|name| (name, number())),
    );
    let function = object([("arguments", text())], [("name", text())]);
    let call = object(
        [("index", whole()), ("function", function)],
        [("id", text()), ("type", one_of(&["function"]))],
    );
    let delta = object(
        [],
        [
            ("role", one_of(&["assistant"])),
            ("content", text()),
            ("reasoning", text()),
            ("reasoning_content", text()),
            ("tool_calls", list(call)),
        ],
    );
    let choice = |what: (&str, Value), logprobs: &str| {
        object(
            [
                what,
                ("index", whole()),
                ("logprobs", or_null(named(logprobs))),
                ("finish_reason", or_null(finish_reason())),
            ],
            [
                ("stop_reason", stop_reason()),
                ("token_ids", list(whole())),
                ("prompt_token_ids", list(whole())),
            ],
        )
    };
    let chunk = |kind: &str, choice: Value| {
        object(
            [
                ("id", text()),
                ("object", one_of(&[kind])),
                ("created", whole()),
                ("model", text()),
                ("system_fingerprint", text()),
                ("choices", list(choice)),
            ],
            [
                ("usage", or_null(named("Usage"))),
                ("timings", named("Timings")),
                ("prompt_token_ids", list(whole())),
            ],
        )
    };
    vec![
        ("Timings", timings),
        ("ChatCompletionChunk", chunk("chat.completion.chunk", choice(("delta", delta), "ChatLogprobs"))),
        ("CompletionChunk", chunk("text_completion", choice(("text", text()), "CompletionLogprobs"))),
    ]
}
