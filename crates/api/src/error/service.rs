//! Errors that need more than the body: models, context lengths, keys, limits, HTTP framing, and internal
//! failures. Does not know JSON.

use http::StatusCode;

use super::{ApiError, ErrorType, echo};

/// Errors about the model and its context.
impl ApiError {
    /// An adapter is broken or does not fit the model. `reason` names the fault.
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

    /// The prompt alone exceeds the context. `param` is its parameter (`messages`, `prompt`).
    pub fn prompt_too_long(param: impl Into<String>, n_tokens: usize, max_model_len: u32) -> Self {
        let message = format!(
            "This model's maximum context length is {max_model_len} tokens. However, your prompt has \
             {n_tokens} tokens. Please shorten it."
        );
        Self::bad_request("context_length_exceeded", message).with_param(param)
    }

    /// A text has more bytes than any prompt that fits the context; it was not tokenized.
    pub fn text_too_long(param: impl Into<String>, n_bytes: usize, max_model_len: u32) -> Self {
        let message = format!(
            "This model's maximum context length is {max_model_len} tokens. However, your prompt has \
             {n_bytes} bytes of text, which cannot fit."
        );
        Self::bad_request("context_length_exceeded", message).with_param(param)
    }

    /// The prompt and the requested output together exceed the context. `param` is the parameter of the
    /// output.
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

    /// The request fits the context but needs more KV blocks than there are, so it could never run.
    pub fn prompt_exceeds_capacity(param: impl Into<String>, needed_blocks: u64, n_blocks: u64) -> Self {
        let message = format!(
            "The request needs {needed_blocks} KV cache blocks, but this server has {n_blocks} in all. \
             Shorten the prompt or lower the number of output tokens."
        );
        Self::bad_request("prompt_exceeds_capacity", message).with_param(param)
    }

    /// The chat template refused the conversation. `reason` is the template's own message.
    pub fn template_error(reason: &str) -> Self {
        let message = format!("The model's chat template rejects these messages: {}", echo(reason));
        Self::bad_request("template_error", message).with_param("messages")
    }

    /// The model lacks a chat template or a tokenizer for the request. `reason` is a whole sentence.
    pub fn unsupported_by_model(param: impl Into<String>, reason: &str) -> Self {
        Self::unsupported_parameter(param, reason)
    }
}

/// Errors about keys, permissions and limits.
impl ApiError {
    /// The request has no API key.
    pub fn missing_api_key() -> Self {
        let message = "Missing API key: send 'Authorization: Bearer KEY'.";
        Self::client(StatusCode::UNAUTHORIZED, "missing_api_key", message)
    }

    /// The API key is invalid. The message never repeats it.
    pub fn invalid_api_key() -> Self {
        let message = "Incorrect API key: send 'Authorization: Bearer KEY' with a valid key.";
        Self::client(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
    }

    /// The API key was revoked.
    pub fn api_key_revoked() -> Self {
        Self::client(StatusCode::UNAUTHORIZED, "api_key_revoked", "This API key is no longer valid.")
    }

    /// The token is invalid, for `reason`. The message never repeats it.
    pub fn refused_token(reason: &str) -> Self {
        let message = format!("The bearer token is not accepted: {reason}.");
        Self::client(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
    }

    /// The token has expired.
    pub fn token_expired() -> Self {
        let message = "The bearer token has expired: ask for a new one.";
        Self::client(StatusCode::UNAUTHORIZED, "token_expired", message)
    }

    /// The key is valid but lacks the permission.
    pub fn permission_denied() -> Self {
        let message = "This API key does not permit this request.";
        Self::client(StatusCode::FORBIDDEN, "permission_denied", message)
    }

    /// A client's key was used where only the operator's is accepted.
    pub fn only_for_the_operator() -> Self {
        let message = "Only the operator's key (--admin-key) permits this request.";
        Self::client(StatusCode::FORBIDDEN, "permission_denied", message)
    }

    /// The operator's key was used where a client's is required.
    pub fn not_for_the_operator() -> Self {
        let message = "The operator's key does not permit this request: use an API key.";
        Self::client(StatusCode::FORBIDDEN, "permission_denied", message)
    }

    /// The object that the operator names does not exist.
    pub fn not_found(reason: &str) -> Self {
        Self::client(StatusCode::NOT_FOUND, "not_found", format!("{}.", echo(reason)))
    }

    /// The operator's change is not possible. `reason` is a sentence without its full stop.
    pub fn refused_change(reason: String) -> Self {
        Self::bad_request("invalid_value", format!("Invalid request: {}.", echo(&reason)))
    }

    /// Keys cannot be changed because the server has no database.
    pub fn no_database() -> Self {
        let message = "This server has no database of keys: see --database.";
        Self::client(StatusCode::NOT_FOUND, "unsupported_by_server", message)
    }

    /// The limit of requests or tokens a minute is reached.
    pub fn rate_limit_exceeded(what: &str, retry_after_s: u32) -> Self {
        let message = format!("Rate limit reached: {what}. Please retry after {retry_after_s} s.");
        Self::new(StatusCode::TOO_MANY_REQUESTS, ErrorType::RateLimit, "rate_limit_exceeded", message)
            .retry_after(retry_after_s)
    }

    /// The request alone exceeds a limit. The status is not 429, since waiting does not help.
    pub fn request_exceeds_rate_limit(unit: &str, limit: u64, needed: u64) -> Self {
        let message = format!(
            "This API key has {limit} {unit}, but the request needs up to {needed}: its prompts and 'max_tokens' for each \
             answer. Shorten the prompt or lower 'max_tokens'."
        );
        Self::bad_request("request_exceeds_rate_limit", message)
    }

    /// The server records no usage: it has no ledger.
    pub fn no_ledger() -> Self {
        let message = "This server has no ledger: it runs without a database.";
        Self::client(StatusCode::NOT_FOUND, "unsupported_by_server", message)
    }

    /// The ledger entry of a request with a budget cannot be written.
    pub fn ledger_unavailable(retry_after_s: u32) -> Self {
        let message = "This API key, its project or its organisation has a budget, and the server has no room to write down what the request would use: its disk is full. Try again later.";
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "ledger_unavailable", message)
            .retry_after(retry_after_s)
    }
}

/// Errors of the HTTP exchange.
impl ApiError {
    /// The body exceeds the limit.
    pub fn request_too_large(max_bytes: usize) -> Self {
        let message = format!("The request body is larger than the allowed {max_bytes} bytes.");
        Self::client(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
    }

    /// Reading the request takes more memory than all requests together may use.
    pub fn request_needs_too_much_memory(max_bytes: usize) -> Self {
        let message = format!("The request needs more memory than the allowed {max_bytes} bytes.");
        Self::client(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
    }

    /// The answer exceeds the limit. If that is found before the generation, `asked` has the parameter to
    /// lower and the reason.
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

    /// The client disconnected or broke the framing while the body was read.
    pub fn incomplete_body() -> Self {
        Self::bad_request("incomplete_body", "The request body ended early.".to_owned())
    }

    /// The request is not valid HTTP/1, or its end is ambiguous. `reason` is a clause.
    pub fn malformed_request(reason: &str) -> Self {
        Self::bad_request("malformed_request", format!("The request is not well-formed HTTP: {reason}."))
    }

    /// The HTTP version is not 1.0, 1.1 or 2. The status is not 505, which client libraries would retry.
    pub fn unsupported_http_version() -> Self {
        let message = "This server speaks HTTP/1.0, HTTP/1.1 and HTTP/2 only.".to_owned();
        Self::bad_request("unsupported_http_version", message)
    }

    /// The URL cannot be parsed. `reason` is a clause.
    pub fn invalid_url(reason: &str) -> Self {
        Self::bad_request("invalid_url", format!("The request's URL is not valid: {reason}."))
    }

    /// The body has a `Content-Encoding` other than identity.
    pub fn unsupported_encoding() -> Self {
        let message = "Compressed request bodies are not accepted.";
        Self::client(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", message)
    }

    /// `Content-Type` is missing or is not JSON in UTF-8.
    pub fn unsupported_media_type() -> Self {
        let message = "The request body must be JSON in UTF-8, sent as 'Content-Type: application/json'.";
        Self::client(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    /// The route does not support the method. `allow` lists the supported ones.
    pub fn method_not_allowed(allow: &'static str) -> Self {
        let message = format!("This URL allows only {allow}.");
        let mut error = Self::client(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        error.0.allow = Some(allow);
        error
    }

    /// The route does not exist.
    pub fn unknown_url(method: &str, path: &str) -> Self {
        let message = format!("Unknown request URL: {} {}.", echo(method), echo(path));
        Self::client(StatusCode::NOT_FOUND, "unknown_url", message)
    }

    /// The caller has no finished request with this id, or its record has expired.
    pub fn request_not_found(id: &str) -> Self {
        let message = format!("No finished request with the id '{}' is known to this API key.", echo(id));
        Self::client(StatusCode::NOT_FOUND, "request_not_found", message)
    }

    /// The headers are too many or too long.
    pub fn headers_too_large() -> Self {
        let message = "The request's header fields are too large.";
        Self::client(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large", message)
    }

    /// The URI is too long.
    pub fn uri_too_long() -> Self {
        Self::client(StatusCode::URI_TOO_LONG, "uri_too_long", "The request's URI is too long.")
    }

    /// The requested upgrade is not supported.
    pub fn unsupported_upgrade() -> Self {
        Self::bad_request("unsupported_upgrade", "This protocol upgrade is not offered.".to_owned())
    }

    /// The `Host` header is missing, repeated or malformed.
    pub fn bad_host() -> Self {
        Self::bad_request("bad_host", "The Host header is missing or malformed.".to_owned())
    }

    /// The request comes from a web page of another origin.
    pub fn forbidden_origin(origin: &str) -> Self {
        let message = format!(
            "Requests from web pages of the origin '{}' are not allowed. The operator can allow them with \
             --allowed-origins, or, if a proxy shows this server under that name, with --allowed-hosts.",
            echo(origin)
        );
        Self::client(StatusCode::FORBIDDEN, "forbidden_origin", message)
    }

    /// `Host` has an unknown name: a proxy forwards its own name, or a web page uses DNS rebinding.
    pub fn forbidden_host(name: &str) -> Self {
        let message = format!(
            "Requests under the host name '{0}' are not allowed. If a proxy forwards this name, the operator can \
             allow it with --allowed-hosts {0}.",
            echo(name)
        );
        Self::client(StatusCode::FORBIDDEN, "forbidden_origin", message)
    }
}

/// Errors of the server's own state.
impl ApiError {
    /// The queue is full or a deadline cannot be met. `reason` is a whole sentence.
    pub fn overloaded(reason: &str, retry_after_s: u32) -> Self {
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "overloaded", reason).retry_after(retry_after_s)
    }

    /// There is no capacity plan, since this process does not record an engine's load.
    pub fn not_recorded() -> Self {
        let message = "There is no plan here: only 'throng serve' with --record FILE makes one, of the load \
                       that it records.";
        Self::client(StatusCode::NOT_FOUND, "not_recorded", message)
    }

    /// Too little was recorded for a capacity plan. `reason` is a whole sentence.
    pub fn plan_not_ready(reason: &str, retry_after_s: u32) -> Self {
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "plan_not_ready", reason).retry_after(retry_after_s)
    }

    /// The server is shutting down and accepts no new requests.
    pub fn shutting_down(retry_after_s: u32) -> Self {
        let message = "The server is shutting down.";
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message).retry_after(retry_after_s)
    }

    /// Whether the request is refused because the server is shutting down.
    pub fn is_shutting_down(&self) -> bool {
        self.code() == "shutting_down"
    }

    /// A stream was cut after its first byte, because the server is shutting down.
    pub fn stream_interrupted() -> Self {
        let message =
            "The stream was cut before its end: the server is stopping. Please send the request again.";
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "stream_interrupted", message)
    }

    /// No worker has computed the request, or none can at present.
    pub fn no_healthy_worker(retry_after_s: u32) -> Self {
        Self::no_worker("No worker could answer.", retry_after_s)
    }

    /// The only worker that may compute the request, by its header `header`, does not answer or is not known.
    pub fn named_worker_unavailable(header: &str, retry_after_s: u32) -> Self {
        let message = format!("The worker that '{header}' names is not known, or does not answer.");
        Self::no_worker(message, retry_after_s)
    }

    fn no_worker(message: impl Into<String>, retry_after_s: u32) -> Self {
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "no_healthy_worker", message).retry_after(retry_after_s)
    }

    /// The client's deadline is too short for the request. The status is not 503, since waiting does not
    /// help.
    pub fn deadline_too_short(needed_ms: u64) -> Self {
        let message = format!(
            "The request needs about {needed_ms} ms, more than 'x-request-deadline-ms' allows. Raise it, shorten the prompt or \
             lower 'max_tokens'."
        );
        Self::bad_request("deadline_too_short", message).with_param("x-request-deadline-ms")
    }

    /// The moderation service does not answer.
    pub fn moderation_unavailable(retry_after_s: u32) -> Self {
        let message = "The prompt cannot be checked at present.";
        Self::server(StatusCode::SERVICE_UNAVAILABLE, "moderation_unavailable", message)
            .retry_after(retry_after_s)
    }

    /// An upstream engine failed, or its response cannot be passed on.
    pub fn upstream_error() -> Self {
        let message = "The engine that serves this model failed.";
        Self::server(StatusCode::BAD_GATEWAY, "upstream_error", message)
    }

    /// An upstream engine did not answer in time.
    pub fn upstream_timeout() -> Self {
        let message = "The engine that serves this model did not answer in time.";
        Self::server(StatusCode::GATEWAY_TIMEOUT, "upstream_timeout", message)
    }

    /// An upstream engine refused the request without a reason.
    pub fn upstream_rejected() -> Self {
        Self::bad_request(
            "upstream_rejected",
            "The engine that serves this model rejects the request.".to_owned(),
        )
    }

    /// The generation exceeded its timeout.
    pub fn generation_timeout() -> Self {
        let message = "The generation took longer than this server allows.";
        Self::server(StatusCode::GATEWAY_TIMEOUT, "generation_timeout", message)
    }

    /// An internal failure. The operator finds it in the log by the request's id.
    pub fn internal_error(request_id: &str) -> Self {
        let message = format!("An internal error occurred (request {}).", echo(request_id));
        Self::server(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }
}
