//! All routes as the OpenAPI document lists them. Does not know how they are served.

/// A method of a route; HEAD requests are answered by the handler of GET.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// The method GET.
    Get,
    /// The method POST.
    Post,
    /// The method DELETE.
    Delete,
}

/// A route in the document, with one of its methods.
pub(super) struct Operation {
    pub path: &'static str,
    pub summary: &'static str,
    /// Media type of the answer; empty if it has no body.
    pub content_type: &'static str,
    /// Name of the request body's schema.
    pub body: Option<&'static str>,
    pub method: Method,
    /// Status of a successful answer.
    pub status: &'static str,
    /// Name of the answer's schema; empty: any.
    pub answer: &'static str,
}

pub(super) const JSON: &str = "application/json";
const TEXT: &str = "text/plain";
const HTML: &str = "text/html";
const BYTES: &str = "application/octet-stream";
const LINES: &str = "application/x-jsonl";

const fn get(path: &'static str, summary: &'static str) -> Operation {
    Operation {
        path,
        summary,
        content_type: JSON,
        body: None,
        method: Method::Get,
        status: "200",
        answer: "",
    }
}

const fn post(path: &'static str, body: &'static str, summary: &'static str) -> Operation {
    Operation {
        path,
        summary,
        content_type: JSON,
        body: Some(body),
        method: Method::Post,
        status: "200",
        answer: "",
    }
}

impl Operation {
    /// Sets the schema of the answer.
    const fn gives(self, answer: &'static str) -> Self {
        Self { answer, ..self }
    }
}

/// A GET whose answer is only a status.
const fn empty(path: &'static str, summary: &'static str) -> Operation {
    Operation { content_type: "", ..get(path, summary) }
}

/// A POST without a body.
const fn act(path: &'static str, summary: &'static str) -> Operation {
    Operation { method: Method::Post, ..get(path, summary) }
}

const fn delete(path: &'static str, summary: &'static str) -> Operation {
    Operation { method: Method::Delete, ..get(path, summary) }
}

pub(super) const OPERATIONS: &[Operation] = &[
    post(
        "/v1/chat/completions",
        "ChatCompletionRequest",
        "Answer a conversation; with stream as server-sent events, ended by [DONE].",
    )
    .gives("ChatCompletion"),
    post(
        "/v1/completions",
        "CompletionRequest",
        "Continue texts or token ids; with stream as server-sent events, ended by [DONE].",
    )
    .gives("Completion"),
    post("/v1/embeddings", "EmbeddingRequest", "The embeddings of texts.").gives("EmbeddingList"),
    post("/v1/rerank", "RerankRequest", "Documents in the order of their relevance to a query.")
        .gives("Ranking"),
    post("/rerank", "RerankRequest", "Documents in the order of their relevance to a query.")
        .gives("Ranking"),
    post("/score", "ScoreRequest", "The scores of pairs of texts.").gives("ScoreList"),
    post("/v1/score", "ScoreRequest", "The scores of pairs of texts.").gives("ScoreList"),
    post("/v1/classify", "ClassifyRequest", "The classes of texts.").gives("ClassificationList"),
    post("/classify", "ClassifyRequest", "The classes of texts.").gives("ClassificationList"),
    get("/v1/models", "The models that are served.").gives("ModelList"),
    get("/v1/models/{id}", "One model.").gives("Model"),
    get("/v1/organization/usage/completions", "Requests and tokens by time, project, user, key and model.")
        .gives("UsagePage"),
    get("/v1/organization/costs", "What was used costs, by day, project, key and model.").gives("CostsPage"),
    Operation {
        content_type: TEXT,
        ..post("/v1/load_lora_adapter", "LoadAdapterRequest", "Load an adapter, if the operator allows it.")
    },
    Operation {
        content_type: TEXT,
        ..post(
            "/v1/unload_lora_adapter",
            "UnloadAdapterRequest",
            "Unload an adapter, if the operator allows it.",
        )
    },
    post("/infill", "InfillRequest", "Fill a gap in a text, as llama.cpp's server does."),
    post(
        "/v1/responses",
        "ResponseRequest",
        "Answer a conversation as OpenAI's Responses do; with stream by events.",
    ),
    post("/v1/responses/compact", "ResponseRequest", "A conversation made short, to go on with."),
    get("/v1/responses/{id}", "A kept response; with stream=true its events, after starting_after."),
    delete("/v1/responses/{id}", "Delete a kept response."),
    act("/v1/responses/{id}/cancel", "Ends a response that is answered in the background."),
    get("/v1/responses/{id}/input_items", "The items of a kept response's input."),
    post("/v1/conversations", "ConversationRequest", "Make a conversation."),
    get("/v1/conversations/{id}", "A kept conversation."),
    post("/v1/conversations/{id}", "ConversationRequest", "Change the metadata of a conversation."),
    delete("/v1/conversations/{id}", "Delete a conversation and its items."),
    get("/v1/conversations/{id}/items", "The items of a conversation, a page at a time."),
    post("/v1/conversations/{id}/items", "ItemsRequest", "Add items to a conversation."),
    get("/v1/conversations/{id}/items/{item_id}", "An item of a conversation."),
    delete("/v1/conversations/{id}/items/{item_id}", "Delete an item of a conversation."),
    post("/v1/responses/input_tokens", "InputTokensRequest", "The number of an input's tokens."),
    post(
        "/v1/messages",
        "MessageRequest",
        "Answer a conversation as Anthropic's API does; with stream by events.",
    ),
    get("/v1/files", "The files of the key's tenant, a page at a time.").gives("FileList"),
    act("/v1/files", "Upload a file: a form with the fields file and purpose.").gives("File"),
    get("/v1/files/{id}", "Name, size and purpose of a file.").gives("File"),
    delete("/v1/files/{id}", "Delete a file."),
    Operation { content_type: BYTES, ..get("/v1/files/{id}/content", "The content of a file.") },
    get("/v1/batches", "The batches of the key's tenant, a page at a time.").gives("BatchList"),
    post("/v1/batches", "CreateBatchRequest", "Answer the requests of a file when the server is idle.")
        .gives("Batch"),
    get("/v1/batches/{id}", "A batch with its progress.").gives("Batch"),
    act("/v1/batches/{id}/cancel", "End a batch before all of its requests are answered.").gives("Batch"),
    get("/v1/messages/batches", "The batches of messages of the key's tenant, a page at a time."),
    post("/v1/messages/batches", "MessageBatchRequest", "Answer messages when the server is idle."),
    get("/v1/messages/batches/{id}", "A batch of messages with its progress."),
    delete("/v1/messages/batches/{id}", "Delete a batch of messages that has ended, with its results."),
    act("/v1/messages/batches/{id}/cancel", "End a batch before all of its messages are answered."),
    Operation {
        content_type: LINES,
        ..get("/v1/messages/batches/{id}/results", "The results of a batch that has ended, one a line.")
    },
    post("/v1/messages/count_tokens", "CountTokensRequest", "The number of a conversation's tokens."),
    post(
        "/api/chat",
        "OllamaChatRequest",
        "Answer a conversation as Ollama's API does, line by line unless stream is false.",
    ),
    post("/api/generate", "OllamaGenerateRequest", "Answer a prompt as Ollama's API does."),
    post("/api/show", "NamedModelRequest", "What a model can do, in Ollama's form."),
    post("/api/embed", "OllamaEmbedRequest", "The embeddings of texts, in Ollama's form."),
    post("/api/embeddings", "OllamaEmbeddingsRequest", "The embedding of a text, in Ollama's older form."),
    post("/api/pull", "OllamaPullRequest", "Bring a model into the cache, for operators who allow it."),
    delete("/api/delete", "Refused: models are removed on the server's machine."),
    act("/api/delete", "Refused: models are removed on the server's machine."),
    act("/api/copy", "Refused: names of models are the operator's."),
    act("/api/create", "Refused: this server makes no models."),
    act("/api/push", "Refused: this server publishes no models."),
    get("/api/tags", "The models, in Ollama's form."),
    get("/api/ps", "The models in memory, in Ollama's form."),
    get("/api/version", "The version of Ollama whose API is spoken, and that of this server."),
    post("/tokenize", "TokenizeRequest", "The tokens of a text or of a conversation.").gives("Tokens"),
    post("/detokenize", "DetokenizeRequest", "The text of tokens.").gives("Text"),
    post("/v1/moderations", "ModerationRequest", "Which of the operator's rules texts match.")
        .gives("Moderation"),
    get("/tokenizer_info", "The tokenizer's configuration, where the operator enabled it."),
    empty("/health", "Whether requests can be answered."),
    empty("/health/live", "Whether the process lives."),
    empty("/health/ready", "Whether requests can be answered."),
    empty("/ping", "Whether requests can be answered."),
    get("/version", "The version of this server.").gives("Version"),
    get("/load", "How many sequences run or wait.").gives("Load"),
    Operation { content_type: TEXT, ..get("/metrics", "Metrics for Prometheus.") },
    get("/explain", "The caller's latest finished requests.").gives("ExplainedRequests"),
    get("/explain/{id}", "Where the time of one of the caller's finished requests went.")
        .gives("Explanation"),
    get("/fleet", "The workers of this gateway, for its operators.").gives("Fleet"),
    Operation {
        content_type: HTML,
        ..get("/plan", "A page with a capacity plan for the recorded load, for operators who record.")
    },
    get("/openapi.json", "This document."),
    post("/v1/models/load", "NamedModelRequest", "Load a model that comes on demand, for operators."),
    post("/v1/models/unload", "NamedModelRequest", "Unload one, once its requests have ended."),
    post("/v1/models/sleep", "SleepRequest", "Drop a model's weights, once its requests have ended."),
    post("/v1/models/wake", "NamedModelRequest", "Load a model that sleeps."),
    get("/admin/models", "The models of this process, with their states."),
    get("/admin/keys", "All API keys; like all of /admin on the operator's listener only."),
    Operation {
        status: "201",
        ..post("/admin/keys", "CreateKeyRequest", "Make an API key, whose text is in this answer only.")
    },
    post("/admin/keys/{id}", "ChangeKeyRequest", "Change what a key may do."),
    act("/admin/keys/{id}/revoke", "Refuse a key from now on."),
    get("/admin/organisations", "Organisations and their projects, with limits."),
    get("/admin/audit", "Where requests that are bound to regions went, a page at a time."),
    post("/admin/limits", "LimitRequest", "Limit an organisation, a project or each of its users."),
    get("/admin/rollouts", "The latest roll-out of each alias."),
    Operation {
        status: "201",
        ..post("/admin/rollouts", "BeginRolloutRequest", "Give an alias's requests to a new model by stages.")
    },
    act("/admin/rollouts/{alias}/rollback", "Give all of an alias's requests back to its models."),
    Operation { status: "202", ..act("/admin/drain", "Finish what runs and end the server.") },
    Operation { content_type: HTML, ..get("/dashboard", "A page that shows the server at work.") },
    Operation { content_type: HTML, ..get("/", "A page to chat with the models.") },
];
