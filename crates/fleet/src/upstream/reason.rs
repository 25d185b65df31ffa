//! Converts an engine's error in any of the known forms into OpenAI's form. All engines' errors for a
//! prompt that is too long get the same code, at which agents shorten their conversation. Does not know how
//! requests are handled.

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

/// Maximum characters of a reason that is passed on.
const MAX_REASON_CHARS: usize = 4_000;
/// Maximum number of faults of a list that are named.
const MAX_LISTED: usize = 8;
/// Maximum bytes of a text without JSON that counts as a reason.
const MAX_PLAIN_BYTES: usize = 2_000;

/// OpenAI's code for a prompt that is too long.
const TOO_LONG: &str = "context_length_exceeded";

/// Reason of an engine's error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reason {
    /// Message of the engine.
    pub message: String,
    /// Whether the prompt, alone or with the answer, exceeds the model's context.
    pub is_too_long: bool,
    /// Status in the error itself.
    pub status: Option<StatusCode>,
    /// Whether the error's type means that the request is invalid.
    is_of_request: bool,
    /// Body of the error in OpenAI's form.
    body: Value,
    is_as_it_came: bool,
}

impl Reason {
    /// Parses the body of an error.
    pub fn read(body: &[u8]) -> Option<Self> {
        match serde_json::from_slice::<Value>(body) {
            Ok(told) => Self::of_json(told),
            Err(_) => {
                let text = std::str::from_utf8(body).ok()?.trim();
                let is_plain =
                    (1..=MAX_PLAIN_BYTES).contains(&text.len()) && !text.starts_with(['<', '{', '[']);
                is_plain.then(|| Self::new(text.to_owned(), &Value::Null))
            }
        }
    }

    /// Parses a document that contains only an error.
    pub fn of_json(mut told: Value) -> Option<Self> {
        // OpenAI, vLLM, llama.cpp, Ollama, Anthropic.
        if told["error"]["message"].is_string() {
            let error = &told["error"];
            let mut reason = Self::new(text(&error["message"]), error);
            let code = error["code"].as_str();
            if !reason.is_too_long || code == Some(TOO_LONG) {
                (reason.body, reason.is_as_it_came) = (told, true);
            } else if let Some(error) = told["error"].as_object_mut() {
                error.extend(reason.body["error"].as_object().cloned().unwrap_or_default());
                reason.body = json!({ "error": told["error"] });
            }
            return Some(reason);
        }
        let message = match &told {
            // vLLM before 0.10, SGLang.
            told if told["message"].is_string() => text(&told["message"]),
            // TGI; Ollama's own API.
            told if told["error"].is_string() => text(&told["error"]),
            // FastAPI: a message, or a list of faults with their locations.
            told if !told["detail"].is_null() => listed(&told["detail"])?,
            told if !told["errors"].is_null() => listed(&told["errors"])?,
            _ => return None,
        };
        Some(Self::new(message, &told))
    }

    fn new(message: String, of: &Value) -> Self {
        let message: String = message.chars().take(MAX_REASON_CHARS).collect();
        let names = [&of["code"], &of["type"], &of["error_type"]];
        let names: Vec<&str> = names.into_iter().filter_map(Value::as_str).collect();
        let is_too_long = is_too_long(&names, &message);
        let status = [&of["code"], &of["status"], &of["status_code"]].into_iter().find_map(status);
        let is_of_request = names.iter().any(|name| {
            let name = name.to_ascii_lowercase();
            name.contains("badrequest") || name.contains("invalid_request") || name.contains("validation")
        });
        let code = if is_too_long { json!(TOO_LONG) } else { Value::Null };
        let error = json!({
            "message": message,
            "type": "invalid_request_error",
            "param": of["param"].as_str(),
            "code": code,
        });
        let body = json!({ "error": error });
        Self { message, is_too_long, status, is_of_request, body, is_as_it_came: false }
    }

    /// Body for the client; `came` is the engine's body.
    pub fn body(&self, came: Bytes) -> Bytes {
        if self.is_as_it_came { came } else { self.body.to_string().into() }
    }

    /// The error's code, if it is one that gateways use among themselves.
    pub fn gateways_code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }

    /// Status for the client; `None` if the fault is not the client's.
    pub fn clients_status(&self) -> Option<StatusCode> {
        if self.is_too_long {
            return Some(StatusCode::BAD_REQUEST);
        }
        match self.status {
            Some(status) => is_of_request(status).then_some(status),
            None => self.is_of_request.then_some(StatusCode::BAD_REQUEST),
        }
    }
}

/// Reason in the body of a rejection, for clients that do not get the body itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectionReason {
    /// Message of the engine.
    pub message: String,
    /// Whether the prompt, alone or with the answer, exceeds the model's context.
    pub is_too_long: bool,
}

/// The reason of a rejection with this body, if it contains one.
pub fn rejection_reason(body: &[u8]) -> Option<RejectionReason> {
    let Reason { message, is_too_long, .. } = Reason::read(body)?;
    Some(RejectionReason { message, is_too_long })
}

/// Whether this status of an engine means that the request is invalid.
pub(super) fn is_of_request(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST
            | StatusCode::CONFLICT
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNPROCESSABLE_ENTITY
    )
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn status(value: &Value) -> Option<StatusCode> {
    let number = value.as_u64().or_else(|| value.as_str()?.parse().ok())?;
    StatusCode::from_u16(u16::try_from(number).ok()?).ok().filter(|status| status.as_u16() >= 400)
}

/// Formats a message, or some faults with their locations.
fn listed(value: &Value) -> Option<String> {
    if let Some(sentence) = value.as_str() {
        return Some(sentence.to_owned());
    }
    let one = |fault: &Value| {
        let words = [&fault["msg"], &fault["message"], fault].into_iter().find_map(Value::as_str)?;
        let place: Vec<String> = fault["loc"].as_array().into_iter().flatten().map(plain).collect();
        let place = place.strip_prefix(&["body".to_owned()]).unwrap_or(&place).join(".");
        Some(if place.is_empty() { words.to_owned() } else { format!("{place}: {words}") })
    };
    let faults: Vec<String> = value.as_array()?.iter().take(MAX_LISTED).filter_map(one).collect();
    (!faults.is_empty()).then(|| faults.join("; "))
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Codes of this fault in `code`, `type` or `error_type`.
const NAMES: [&str; 5] = [
    TOO_LONG,
    "exceed_context_size",
    "context_window_exceeded",
    "prompt_too_long",
    "context_window_too_small",
];
/// Phrases in messages of engines, in lower case.
const PHRASES: [&str; 22] = [
    // OpenAI, vLLM, SGLang, DeepSeek, Mistral.
    "maximum context length",
    "reduce the length of the messages",
    "exceed the configured limit",
    // vLLM.
    "longer than the maximum model length",
    "longer than the max_model_len",
    // SGLang.
    "maximum allowed length",
    "maximum allowed input length",
    // llama.cpp: a prompt; a text for an embedding.
    "too large to process",
    "n_prompt_tokens exceeds",
    // TGI, TEI.
    "`inputs` tokens + `max_new_tokens` must be",
    "`inputs` must have less than",
    // TensorRT-LLM.
    "should not exceed max_seq_len",
    "should not exceed max_num_tokens",
    "should not exceed max_input_len",
    // Ollama, Anthropic, Bedrock.
    "prompt too long",
    "prompt is too long",
    "input is too long",
    // xAI, Gemini, Kimi, LM Studio, Cohere.
    "maximum prompt length",
    "maximum number of tokens allowed",
    "exceeded model token limit",
    "when context the overflows",
    "too many tokens: ",
];
/// Phrases for the context.
const CONTEXTS: [&str; 6] = [
    "context length",
    "context size",
    "context window",
    "context limit",
    "context_length",
    "sequence length",
];
/// Phrases that follow a context's name when it is exceeded.
const EXCESSES: [&str; 7] =
    ["exceed", "longer than", "larger than", "greater than", "too long", "too large", "overflow"];
/// Phrases of rate limits, which are not about the context.
const RATES: [&str; 5] = ["rate limit", "rate_limit", "per min", "per day", "quota"];

fn is_too_long(names: &[&str], message: &str) -> bool {
    let has_name = |name: &&str| NAMES.iter().any(|known| name.contains(known));
    if names.iter().any(has_name) {
        return true;
    }
    let message = message.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
    !says(&RATES) && (says(&PHRASES) || says(&CONTEXTS) && says(&EXCESSES))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Reason {
        Reason::read(body.as_bytes()).unwrap_or_else(|| panic!("{body}"))
    }

    /// Messages of engines and services.
    const LONG: &[&str] = &[
        r#"{"object":"error","message":"This model's maximum context length is 10 tokens. However, you requested 26 tokens (10 in the messages, 16 in the completion).","type":"BadRequestError","param":null,"code":400}"#,
        r#"{"error":{"message":"This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens.","type":"BadRequestError","param":"input_tokens","code":400}}"#,
        r#"{"error":{"message":"The decoder prompt (length 5000) is longer than the maximum model length of 4096.","type":"BadRequestError","param":null,"code":400}}"#,
        r#"{"object":"error","message":"The prompt (total length 25938) is too long to fit into the model (context length 4096).","type":"BadRequestError","code":400}"#,
        r#"{"object":"error","message":"The input (9000 tokens) is longer than the model's context length (8192 tokens).","type":"BadRequestError","param":null,"code":400}"#,
        r#"{"object":"error","message":"Requested token count exceeds the model's maximum context length of 8192 tokens.","type":"BadRequestError","code":400}"#,
        r#"{"object":"error","message":"Input length 131393 exceeds the maximum allowed input length of 131040 tokens.","code":400}"#,
        r#"{"error":{"code":400,"message":"request (9412 tokens) exceeds the available context size (8192 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":9412,"n_ctx":8192}}"#,
        r#"{"error":{"code":400,"message":"the request exceeds the available context size. try increasing the context size or enable context shift","type":"invalid_request_error"}}"#,
        r#"{"error":{"code":500,"message":"input (700 tokens) is too large to process. increase the physical batch size (current batch size: 512)","type":"server_error"}}"#,
        r#"{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 512 `max_new_tokens`","error_type":"validation"}"#,
        r#"{"error":"Input validation error: `inputs` must have less than 512 tokens. Given: 600","error_type":"Validation"}"#,
        r#"{"error":{"message":"prompt too long; exceeded max context length by 17 tokens","type":"invalid_request_error","param":null,"code":null}}"#,
        r#"{"error":"prompt too long; exceeded max context length by 17 tokens"}"#,
        r#"{"error":{"message":"Your input exceeds the context window of this model. Please adjust your input and try again.","type":"invalid_request_error","param":"input","code":"context_length_exceeded"}}"#,
        r#"{"error":{"message":"Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 509178 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 198000 + 21333 > 200000, decrease input length or `max_tokens` and try again"}}"#,
        r#"{"object":"error","message":"Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length","type":"invalid_request_error","code":"3051"}"#,
        r#"{"error":{"message":"Please reduce the length of the messages or completion.","type":"invalid_request_error"}}"#,
        r#"{"error":"This model's maximum prompt length is 131072 but the request contains 537812 tokens."}"#,
        r#"{"error":{"code":400,"message":"The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).","status":"INVALID_ARGUMENT"}}"#,
        r#"{"error":"Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens."}"#,
        r#"{"detail":"The number of tokens to keep from the initial prompt is greater than the context length"}"#,
        "Prompt is too long: context window exceeded",
    ];

    #[test]
    fn a_prompt_that_is_too_long_has_one_code() {
        for told in LONG {
            let reason = read(told);
            let body: Value =
                serde_json::from_slice(&reason.body(Bytes::from(told.as_bytes()))).expect("JSON");
            assert_eq!(body["error"]["code"], TOO_LONG, "{told}");
            assert_eq!(reason.clients_status(), Some(StatusCode::BAD_REQUEST), "{told}");
            let words = body["error"]["message"].as_str().expect("a text");
            assert!(told.contains(&words[..words.len().min(12)]), "{told}: {words}");
        }
        // Other members of the engine's error are kept.
        let body: Value = serde_json::from_slice(&read(LONG[7]).body(Bytes::new())).expect("JSON");
        assert_eq!(
            (&body["error"]["n_ctx"], &body["error"]["n_prompt_tokens"]),
            (&json!(8192), &json!(9412))
        );
    }

    #[test]
    fn other_reasons_keep_their_words() {
        for (told, message, status) in [
            (
                r#"{"error":{"message":"Rate limit reached: context length tokens per min exceeded","code":"rate_limit_exceeded"}}"#,
                "Rate limit",
                None,
            ),
            (
                r#"{"object":"error","message":"top_p must be in (0, 1]","type":"BadRequestError","code":400}"#,
                "top_p",
                Some(400),
            ),
            (
                r#"{"error":"Input validation error: `temperature` must be strictly positive","error_type":"validation"}"#,
                "Input",
                Some(400),
            ),
            (
                r#"{"detail":[{"loc":["body","messages",0,"role"],"msg":"field required","type":"missing"}]}"#,
                "messages.0.role: field required",
                None,
            ),
            (r#"{"errors":[{"message":"no"},"never"]}"#, "no; never", None),
            (r#"{"error":{"message":"the provider is down","code":502}}"#, "the provider is down", None),
            (
                r#"{"error":{"message":"x is too long","code":"string_above_max_length","type":"invalid_request_error"}}"#,
                "x",
                Some(400),
            ),
            ("model not found", "model not found", None),
        ] {
            let reason = read(told);
            assert!(reason.message.starts_with(message) && !reason.is_too_long, "{told}: {reason:?}");
            assert_eq!(reason.clients_status().map(|status| status.as_u16()), status, "{told}");
        }
        assert_eq!(
            read(r#"{"error":{"message":"down","code":"502"}}"#).status,
            Some(StatusCode::BAD_GATEWAY)
        );
        for told in ["", "<html>", "{}", "[]", r#"{"error":null}"#, "{\"error\""] {
            assert_eq!(Reason::read(told.as_bytes()), None, "{told}");
        }
    }
}
