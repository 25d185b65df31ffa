//! Faults that the body alone does not show: models, lengths against a model, keys, limits, HTTP framing, and
//! the server's own troubles. Does not know JSON.

use http::StatusCode;

use super::{ApiError, ErrorType, echo};

/// What fits into the model.
impl ApiError {
    /// An adapter is broken or does not fit the model; `reason` says what of it.
    pub fn invalid_adapter(param: &str, reason: &str) -> Self {
        let message = format!("The adapter cannot be loaded: {reason}.");
        Self::bad_request("invalid_adapter", message).with_param(param)
    }

    /// The operator does not allow clients to load and unload adapters.
    pub fn runtime_lora_updates_disabled() -> Self {
        let message = "This server does not load and unload adapters at run time; its operator can allow it with \
                       --allow-runtime-lora-updating.";
        Self::client(StatusCode::FORBIDDEN, "permission_denied", message)
    }

    /// The prompt alone is too long; `param` is where the prompt stands (`messages`, `prompt`).
    pub fn prompt_too_long(param: impl Into<String>, n_tokens: usize, max_model_len: u32) -> Self {
        let message = format!(
            "This model's maximum context length is {max_model_len} tokens. However, your prompt has \
             {n_tokens} tokens. Please shorten it."
        );
        Self::bad_request("context_length_exceeded", message).with_param(param)
    }

    /// A text with more bytes than any prompt of the context can have; it was not tokenized.
    pub fn text_too_long(param: impl Into<String>, n_bytes: usize, max_model_len: u32) -> Self {
        let message = format!(
            "This model's maximum context length is {max_model_len} tokens. However, your prompt has \
             {n_bytes} bytes of text, which cannot fit."
        );
        Self::bad_request("context_length_exceeded", message).with_param(param)
    }

    /// The prompt fits, but not with the output asked for; `param` is the parameter that asked.
    pub fn output_too_long(
        param: impl Into<String>,
        n_prompt_tokens: usize,
        max_tokens: u32,
        max_model_len: u32,
    ) -> Self {
        let sum = n_prompt_tokens as u64 + u64::from(max_tokens);
        let message = format!(
            "This model's maximum context length is {max_model_len} tokens. However, you requested {sum} \
             tokens ({n_prompt_tokens} in the prompt, {max_tokens} in the completion)."
        );
        Self::bad_request("context_length_exceeded", message).with_param(param)
    }

    /// The request fits the context but never the KV pool, so that it would wait for ever.
    pub fn prompt_exceeds_capacity(param: impl Into<String>, needed_blocks: u64, n_blocks: u64) -> Self {
        let message = format!(
            "The request needs {needed_blocks} KV cache blocks, but this server has {n_blocks} in all. \
             Shorten the prompt or lower the number of output tokens."
        );
        Self::bad_request("prompt_exceeds_capacity", message).with_param(param)
    }

    /// The chat template refused the conversation; `reason` is the template's own sentence.
    pub fn template_error(reason: &str) -> Self {
        let message = format!("The model's chat template rejects these messages: {}", echo(reason));
        Self::bad_request("template_error", message).with_param("messages")
    }

    /// The model has no chat template, or no tokenizer to take text with; `reason` is a whole sentence.
    pub fn unsupported_by_model(param: impl Into<String>, reason: &str) -> Self {
        Self::unsupported_parameter(param, reason)
    }
}

/// Faults of the caller: keys, permissions, limits.
impl ApiError {
    /// No key at all.
    pub fn missing_api_key() -> Self {
        let message = "Missing API key: send 'Authorization: Bearer KEY'.";
        Self::client(StatusCode::UNAUTHORIZED, "missing_api_key", message)
    }

    /// A key that is not accepted. The message never repeats what was sent.
    pub fn invalid_api_key() -> Self {
        let message = "Incorrect API key: send 'Authorization: Bearer KEY' with a valid key.";
        Self::client(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
    }

    /// The key was valid once.
    pub fn api_key_revoked() -> Self {
        Self::client(StatusCode::UNAUTHORIZED, "api_key_revoked", "This API key is no longer valid.")
    }

    /// A token that is not accepted, and why; the message never repeats what was sent.
    pub fn refused_token(reason: &str) -> Self {
        let message = format!("The bearer token is not accepted: {reason}.");
        Self::client(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
    }

    /// The token was valid until now.
    pub fn token_expired() -> Self {
        let message = "The bearer token has expired: ask for a new one.";
        Self::client(StatusCode::UNAUTHORIZED, "token_expired", message)
    }

    /// The key is valid but not for this.
    pub fn permission_denied() -> Self {
        let message = "This API key does not permit this request.";
        Self::client(StatusCode::FORBIDDEN, "permission_denied", message)
    }

    /// A client's key where only the operator's opens.
    pub fn only_for_the_operator() -> Self {
        let message = "Only the operator's key (--admin-key) permits this request.";
        Self::client(StatusCode::FORBIDDEN, "permission_denied", message)
    }

    /// The operator's key where a client's belongs.
    pub fn not_for_the_operator() -> Self {
        let message = "The operator's key does not permit this request: use an API key.";
        Self::client(StatusCode::FORBIDDEN, "permission_denied", message)
    }

    /// What the operator names is not there.
    pub fn not_found(reason: &str) -> Self {
        Self::client(StatusCode::NOT_FOUND, "not_found", format!("{}.", echo(reason)))
    }

    /// What the operator asks for cannot be done; `reason` is a sentence without its full stop.
    pub fn refused_change(reason: String) -> Self {
        Self::bad_request("invalid_value", format!("Invalid request: {}.", echo(&reason)))
    }

    /// Refuses changes where there are no keys.
    pub fn no_database() -> Self {
        let message = "This server has no database of keys: see --database.";
        Self::client(StatusCode::NOT_FOUND, "unsupported_by_server", message)
    }

    /// Requests or tokens a minute are used up.
    pub fn rate_limit_exceeded(what: &str, retry_after_s: u32) -> Self {
        let message = format!("Rate limit reached: {what}. Please retry after {retry_after_s} s.");
        Self::new(StatusCode::TOO_MANY_REQUESTS, ErrorType::RateLimit, "rate_limit_exceeded", message)
            .retry_after(retry_after_s)
    }

    /// The request alone is over a limit: waiting does not help, so that it is not 429.
    pub fn request_exceeds_rate_limit(unit: &str, limit: u64, needed: u64) -> Self {
        let message = format!(
            "This API key has {limit} {unit}, but the request needs up to {needed}: its prompts and 'max_tokens' for each \
             answer. Shorten the prompt or lower 'max_tokens'."
        );
        Self::bad_request("request_exceeds_rate_limit", message)
    }

    /// What was used is not written down here.
    pub fn no_ledger() -> Self {
        let message = "This server has no ledger: it runs without a database.";
        Self::client(StatusCode::NOT_FOUND, "unsupported_by_server", message)
    }

    /// The entry of a request with a budget could not be written down.
    pub fn ledger_unavailable(retry_after_s: u32) -> Self {
        let message = "This API key, its project or its organisation has a budget, and the server has no room to write down what the request would use: its disk is full. Try again later.";
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "ledger_unavailable", message)
            .retry_after(retry_after_s)
    }
}

/// The way of the request over HTTP.
impl ApiError {
    /// The body is over the limit.
    pub fn request_too_large(max_bytes: usize) -> Self {
        let message = format!("The request body is larger than the allowed {max_bytes} bytes.");
        Self::client(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
    }

    /// What the request needs while it is read is over the limit for all requests together.
    pub fn request_needs_too_much_memory(max_bytes: usize) -> Self {
        let message = format!("The request needs more memory than the allowed {max_bytes} bytes.");
        Self::client(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
    }

    /// The answer would be over the limit; where it is known before the end, with the parameter to lower and
    /// why.
    pub fn answer_too_large(asked: Option<(&'static str, &str)>, max_bytes: usize) -> Self {
        let Some((param, reason)) = asked else {
            let message = format!("The answer is larger than the allowed {max_bytes} bytes.");
            return Self::bad_request("answer_too_large", message);
        };
        let message = format!(
            "The answer would be larger than the allowed {max_bytes} bytes: {reason}. Please lower '{param}'."
        );
        Self::bad_request("answer_too_large", message).with_param(param)
    }

    /// The head or the body did not arrive in time.
    pub fn request_timeout() -> Self {
        let message = "The request did not arrive in time.";
        Self::client(StatusCode::REQUEST_TIMEOUT, "request_timeout", message)
    }

    /// The client went away or broke the framing while its body was read.
    pub fn incomplete_body() -> Self {
        Self::bad_request("incomplete_body", "The request body ended early.".to_owned())
    }

    /// The request is not HTTP/1 as it should be, or ambiguous in where it ends; `reason` is a clause.
    pub fn malformed_request(reason: &str) -> Self {
        Self::bad_request("malformed_request", format!("The request is not well-formed HTTP: {reason}."))
    }

    /// Neither HTTP/1.0, HTTP/1.1 nor HTTP/2. Not 505, which client libraries would retry.
    pub fn unsupported_http_version() -> Self {
        let message = "This server speaks HTTP/1.0, HTTP/1.1 and HTTP/2 only.".to_owned();
        Self::bad_request("unsupported_http_version", message)
    }

    /// The URL cannot be understood; `reason` is a clause.
    pub fn invalid_url(reason: &str) -> Self {
        Self::bad_request("invalid_url", format!("The request's URL is not valid: {reason}."))
    }

    /// A `Content-Encoding` other than identity.
    pub fn unsupported_encoding() -> Self {
        let message = "Compressed request bodies are not accepted.";
        Self::client(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", message)
    }

    /// No `Content-Type`, or one that is not JSON in UTF-8.
    pub fn unsupported_media_type() -> Self {
        let message = "The request body must be JSON in UTF-8, sent as 'Content-Type: application/json'.";
        Self::client(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    /// A known route with another method; `allow` lists the right ones.
    pub fn method_not_allowed(allow: &'static str) -> Self {
        let message = format!("This URL allows only {allow}.");
        let mut error = Self::client(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        error.0.allow = Some(allow);
        error
    }

    /// No such route.
    pub fn unknown_url(method: &str, path: &str) -> Self {
        let message = format!("Unknown request URL: {} {}.", echo(method), echo(path));
        Self::client(StatusCode::NOT_FOUND, "unknown_url", message)
    }

    /// No finished request of the caller with this id is known, or none any more.
    pub fn request_not_found(id: &str) -> Self {
        let message = format!("No finished request with the id '{}' is known to this API key.", echo(id));
        Self::client(StatusCode::NOT_FOUND, "request_not_found", message)
    }

    /// Header fields are too many or too long.
    pub fn headers_too_large() -> Self {
        let message = "The request's header fields are too large.";
        Self::client(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large", message)
    }

    /// The URI is too long.
    pub fn uri_too_long() -> Self {
        Self::client(StatusCode::URI_TOO_LONG, "uri_too_long", "The request's URI is too long.")
    }

    /// An upgrade that is not offered.
    pub fn unsupported_upgrade() -> Self {
        Self::bad_request("unsupported_upgrade", "This protocol upgrade is not offered.".to_owned())
    }

    /// The Host header is absent, double or malformed.
    pub fn bad_host() -> Self {
        Self::bad_request("bad_host", "The Host header is missing or malformed.".to_owned())
    }

    /// A web page of a foreign origin.
    pub fn forbidden_origin(origin: &str) -> Self {
        let message = format!(
            "Requests from web pages of the origin '{}' are not allowed. The operator can allow them with \
             --allowed-origins, or, if a proxy shows this server under that name, with --allowed-hosts.",
            echo(origin)
        );
        Self::client(StatusCode::FORBIDDEN, "forbidden_origin", message)
    }

    /// A name by which this server is not known: a proxy forwards its own, or a page reaches us by DNS
    /// rebinding.
    pub fn forbidden_host(name: &str) -> Self {
        let message = format!(
            "Requests under the host name '{0}' are not allowed. If a proxy forwards this name, the operator can \
             allow it with --allowed-hosts {0}.",
            echo(name)
        );
        Self::client(StatusCode::FORBIDDEN, "forbidden_origin", message)
    }
}

/// The server's own troubles.
impl ApiError {
    /// The queue is full or a deadline cannot be met; `reason` is a whole sentence.
    pub fn overloaded(reason: &str, retry_after_s: u32) -> Self {
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "overloaded", reason).retry_after(retry_after_s)
    }

    /// The server is stopping and takes no new requests.
    pub fn shutting_down(retry_after_s: u32) -> Self {
        let message = "The server is shutting down.";
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message).retry_after(retry_after_s)
    }

    /// Whether the request is refused because the server is stopping.
    pub fn is_shutting_down(&self) -> bool {
        self.code() == "shutting_down"
    }

    /// A stream was cut after its first byte, because the server is stopping.
    pub fn stream_interrupted() -> Self {
        let message =
            "The stream was cut before its end: the server is stopping. Please send the request again.";
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "stream_interrupted", message)
    }

    /// Refuses a request that nothing can compute at present.
    pub fn no_healthy_worker(retry_after_s: u32) -> Self {
        let message = "No worker is able to answer at present.";
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "no_healthy_worker", message).retry_after(retry_after_s)
    }

    /// The client's deadline is too short for what it asks; waiting does not help, so that it is not 503.
    pub fn deadline_too_short(needed_ms: u64) -> Self {
        let message = format!(
            "The request needs about {needed_ms} ms, more than 'x-request-deadline-ms' allows. Raise it, shorten the prompt or \
             lower 'max_tokens'."
        );
        Self::bad_request("deadline_too_short", message).with_param("x-request-deadline-ms")
    }

    /// What has to judge the prompt does not answer.
    pub fn moderation_unavailable(retry_after_s: u32) -> Self {
        let message = "The prompt cannot be checked at present.";
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "moderation_unavailable", message)
            .retry_after(retry_after_s)
    }

    /// A foreign engine failed, or answered what cannot be passed on.
    pub fn upstream_error() -> Self {
        let message = "The engine that serves this model failed.";
        Self::server(StatusCode::BAD_GATEWAY, "upstream_error", message)
    }

    /// A foreign engine did not answer in time.
    pub fn upstream_timeout() -> Self {
        let message = "The engine that serves this model did not answer in time.";
        Self::server(StatusCode::GATEWAY_TIMEOUT, "upstream_timeout", message)
    }

    /// A foreign engine refuses the request and does not say why.
    pub fn upstream_rejected() -> Self {
        Self::bad_request(
            "upstream_rejected",
            "The engine that serves this model rejects the request.".to_owned(),
        )
    }

    /// The generation took longer than allowed.
    pub fn generation_timeout() -> Self {
        let message = "The generation took longer than this server allows.";
        Self::server(StatusCode::GATEWAY_TIMEOUT, "generation_timeout", message)
    }

    /// A fault inside; only the request's id tells the operator which.
    pub fn internal_error(request_id: &str) -> Self {
        let message = format!("An internal error occurred (request {}).", echo(request_id));
        Self::server(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }
}
