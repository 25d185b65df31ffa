//! The table of vLLM's flags that Throng has no setting for, in the order of vLLM's documentation.
//! `docs/compatibility.toml` lists them together with the flags that Throng has. Does not parse.

use super::flag::Values::{One, OneWay, Some, Switch};
use super::flag::{ForeignFlag, always, ignored, refused};

pub(super) const NO_GPU: &str = "--device chooses what computes, and there is nothing else to set of it";
const ONE_PROCESS: &str = "one process on one machine computes the model";
const OWN_TASK: &str = "the model's files say whether it generates, embeds, ranks or classifies";
pub(super) const OWN_IMAGES: &str = "Throng takes images from requests, by the settings of the model";
const NO_CODE: &str = "Throng runs no code from outside its binary";
const LOAD: &str = "safetensors and GGUF files are mapped and read in parallel";
pub(super) const LOG: &str = "the variable THRONG_LOG selects what is logged";
pub(super) const POOLING: &str = "pooling is as the model's files say";
const NO_TEXT: &str = "texts of prompts and answers are never logged";
const CHAT_API: &str = "set it in the request";
const HYBRID: &str = "the state of Mamba layers has one type and belongs to a sequence";

/// vLLM's flags.
pub const FOREIGN_FLAGS: &[ForeignFlag] = &[
    // the process
    refused("headless", Switch, ONE_PROCESS),
    refused("api-server-count", One, "two threads of the one process serve all connections").but(&["1"]),
    ignored("disable-log-stats", Switch, "no statistics are logged; /metrics has them"),
    ignored("aggregate-engine-logging", Switch, "there is one engine"),
    ignored("enable-log-requests", Switch, NO_TEXT),
    always("disable-log-requests", Switch, NO_TEXT),
    // the HTTP server
    ignored("chat-template-content-format", One, "the form is found in the chat template").but(&["auto"]),
    refused("trust-request-chat-template", Switch, "chat templates of clients are not run"),
    refused("response-role", One, "answers have the role assistant").but(&["assistant"]),
    refused("return-tokens-as-token-ids", Switch, CHAT_API),
    always(
        "enable-auto-tool-choice",
        Switch,
        "tools are always offered; a request turns them off by tool_choice",
    ),
    ignored(
        "exclude-tools-when-tool-choice-none",
        Switch,
        "the chat template gets the tools of each request",
    ),
    refused("tool-parser-plugin", One, NO_CODE),
    refused("reasoning-parser-plugin", One, NO_CODE),
    refused("tool-server", One, "Throng calls no tools itself"),
    refused("log-config-file", One, LOG),
    ignored("max-log-len", One, NO_TEXT),
    always("enable-prompt-tokens-details", Switch, "usage always has prompt_tokens_details"),
    always("enable-server-load-tracking", Switch, "/load always answers"),
    refused(
        "enable-force-include-usage",
        Switch,
        "a stream has usage when stream_options.include_usage asks for it",
    ),
    refused("enable-log-outputs", Switch, NO_TEXT),
    ignored("enable-log-deltas", Switch, NO_TEXT),
    ignored("log-error-stack", Switch, "the log of errors is the same for all"),
    refused("tokens-only", Switch, "all routes are served"),
    ignored("uvicorn-log-level", One, LOG),
    always("disable-uvicorn-access-log", Switch, "there is no access log without --access-log"),
    ignored("disable-access-log-for-endpoints", One, "the access log has all routes"),
    refused("ssl-ciphers", One, "the cipher suites are fixed"),
    refused("middleware", One, NO_CODE),
    always("enable-request-id-headers", Switch, "each answer has x-request-id"),
    ignored("disable-fastapi-docs", Switch, "there is no Swagger page; /openapi.json describes the routes"),
    ignored("enable-offline-docs", Switch, "there is no Swagger page; /openapi.json describes the routes"),
    ignored("h11-max-incomplete-event-size", One, "docs/api.md lists the limits of a request's head"),
    ignored("h11-max-header-count", One, "docs/api.md lists the limits of a request's head"),
    // the model
    ignored("runner", One, OWN_TASK).but(&["auto", "generate"]),
    refused("convert", One, OWN_TASK).but(&["auto", "none"]),
    ignored("task", One, OWN_TASK).but(&["auto", "generate"]),
    ignored("tokenizer-mode", One, "there is one tokenizer for all models").but(&["auto", "hf"]),
    refused("tokenizer-revision", One, "--tokenizer names a folder or a tokenizer.json on this machine"),
    ignored("trust-remote-code", Switch, NO_CODE),
    ignored("code-revision", One, NO_CODE),
    ignored(
        "dtype",
        One,
        "weights are computed in the format of the model's files; --quantize makes them smaller",
    )
    .but(&["auto"]),
    ignored("seed", One, "a request's own seed makes its answer repeatable"),
    refused("hf-config-path", One, "config.json lies in the model's folder"),
    refused("hf-token", One, "set the variable HF_TOKEN, which other users of this machine cannot read"),
    refused("hf-overrides", One, "change config.json in the model's folder"),
    refused("rope-scaling", One, "change config.json in the model's folder"),
    refused("rope-theta", One, "change config.json in the model's folder"),
    refused("allowed-local-media-path", One, OWN_IMAGES),
    refused(
        "quantization",
        One,
        "the format is found in the model's files; --quantize TYPE quantizes a float model",
    ),
    ignored("enforce-eager", Switch, NO_GPU),
    refused("logprobs-mode", One, "log-probabilities are those of the model, before temperature and filters")
        .but(&["raw_logprobs"]),
    refused("disable-sliding-window", Switch, "each layer attends as the model was trained"),
    ignored("disable-cascade-attn", Switch, "results do not depend on how shared prefixes are read"),
    refused("skip-tokenizer-init", Switch, "a model without a tokenizer is served with token ids"),
    refused("enable-prompt-embeds", Switch, "prompts are texts or token ids"),
    refused("config-format", One, "config.json in Hugging Face's form and GGUF are read")
        .but(&["auto", "hf"]),
    refused("pooler-config", One, POOLING),
    refused("enable-sleep-mode", Switch, "pages of the KV cache take memory only when they are used"),
    refused("model-impl", One, NO_CODE).but(&["auto", "vllm"]),
    refused("logits-processors", Some, NO_CODE),
    refused("io-processor-plugin", One, NO_CODE),
    refused("generation-tokens-only", Switch, "all routes are served"),
    // loading
    ignored("load-format", One, LOAD).but(&["auto", "safetensors", "gguf"]),
    ignored("safetensors-load-strategy", One, LOAD).but(&["lazy"]),
    refused("model-loader-extra-config", One, LOAD),
    refused("ignore-patterns", Some, "only the files that a model needs are fetched"),
    ignored("use-tqdm-on-load", Switch, "a terminal gets a progress bar, a log does not"),
    ignored("pt-load-map-location", One, NO_GPU),
    // structured outputs
    ignored("structured-outputs-config", One, "grammars are compiled with llguidance"),
    ignored("guided-decoding-backend", One, "grammars are compiled with llguidance")
        .but(&["auto", "guidance"]),
    // several devices and machines
    refused("data-parallel-size", One, ONE_PROCESS).but(&["1"]),
    refused("decode-context-parallel-size", One, ONE_PROCESS).but(&["1"]),
    refused("prefill-context-parallel-size", One, ONE_PROCESS).but(&["1"]),
    refused("data-parallel-size-local", One, ONE_PROCESS).but(&["1"]),
    refused("data-parallel-rank", One, ONE_PROCESS).but(&["0"]),
    refused("data-parallel-start-rank", One, ONE_PROCESS).but(&["0"]),
    refused("data-parallel-address", One, ONE_PROCESS),
    refused("data-parallel-rpc-port", One, ONE_PROCESS),
    refused("data-parallel-backend", One, ONE_PROCESS),
    refused("data-parallel-hybrid-lb", Switch, ONE_PROCESS),
    refused("data-parallel-external-lb", Switch, ONE_PROCESS),
    refused("nnodes", One, ONE_PROCESS).but(&["1"]),
    refused("node-rank", One, ONE_PROCESS).but(&["0"]),
    refused("master-addr", One, ONE_PROCESS),
    refused("master-port", One, ONE_PROCESS),
    refused("distributed-executor-backend", One, ONE_PROCESS).but(&["uni", "mp"]),
    refused("enable-expert-parallel", Switch, ONE_PROCESS),
    refused("enable-eplb", Switch, ONE_PROCESS),
    refused("eplb-config", One, ONE_PROCESS),
    refused("expert-placement-strategy", One, ONE_PROCESS),
    refused("all2all-backend", One, ONE_PROCESS),
    refused("enable-dbo", Switch, ONE_PROCESS),
    ignored("max-parallel-loading-workers", One, LOAD),
    ignored("disable-custom-all-reduce", Switch, NO_GPU),
    refused("worker-cls", One, NO_CODE).but(&["auto"]),
    refused("worker-extension-cls", One, NO_CODE),
    // the KV cache
    refused("block-size", One, "blocks have 16 tokens").but(&["16"]),
    ignored("gpu-memory-utilization", One, "no GPU is used; --kv-cache-memory bounds keys and values"),
    ignored("swap-space", One, "preempted sequences are computed again"),
    refused("num-gpu-blocks-override", One, "--kv-cache-memory sets the size of the KV cache"),
    always("enable-prefix-caching", OneWay, "--no-enable-prefix-caching turns it off"),
    ignored("prefix-caching-hash-algo", One, "blocks are known by SHA-256").but(&["sha256"]),
    refused("cpu-offload-gb", One, "all weights are in the machine's memory").but(&["0"]),
    ignored("calculate-kv-scales", Switch, "q8_0 has a scale for each 32 elements"),
    refused("kv-sharing-fast-prefill", Switch, "a prompt is computed by all layers"),
    refused("mamba-cache-dtype", One, HYBRID).but(&["auto"]),
    refused("mamba-ssm-cache-dtype", One, HYBRID).but(&["auto"]),
    refused("mamba-block-size", One, HYBRID),
    refused("kv-offloading-size", One, "the KV cache is in the machine's memory"),
    // images and sound
    refused("limit-mm-per-prompt", One, OWN_IMAGES),
    refused("enable-mm-embeds", Switch, OWN_IMAGES),
    refused("media-io-kwargs", One, OWN_IMAGES),
    refused("mm-processor-kwargs", One, OWN_IMAGES),
    ignored("mm-processor-cache-gb", One, OWN_IMAGES),
    ignored("mm-encoder-tp-mode", One, OWN_IMAGES),
    ignored("interleave-mm-strings", Switch, OWN_IMAGES),
    ignored("skip-mm-profiling", Switch, OWN_IMAGES),
    // adapters
    ignored("enable-lora", Switch, "adapters need no switch: --lora-modules"),
    // observability
    ignored("show-hidden-metrics-for-version", One, "/metrics has the current names"),
    ignored("collect-detailed-traces", One, "traces always have all phases"),
    ignored("kv-cache-metrics", Switch, "/metrics has the same gauges for all"),
    // the scheduler
    ignored("max-num-partial-prefills", One, "--inter-token-target-ms bounds the length of chunks"),
    ignored("max-long-partial-prefills", One, "--inter-token-target-ms bounds the length of chunks"),
    ignored("long-prefill-token-threshold", One, "--inter-token-target-ms bounds the length of chunks"),
    always("enable-chunked-prefill", Switch, "long prompts are always computed in chunks"),
    ignored("disable-chunked-mm-input", Switch, OWN_IMAGES),
    refused("scheduler-cls", One, NO_CODE),
    ignored("disable-hybrid-kv-cache-manager", Switch, "there is one KV cache for all layers"),
    ignored("async-scheduling", Switch, "a step is planned from the tokens of the one before"),
    ignored("num-scheduler-steps", One, "each step is planned").but(&["1"]),
    refused("stream-interval", One, "each token is sent when it is there").but(&["1"]),
    // the rest
    ignored("cudagraph-capture-sizes", Some, NO_GPU),
    ignored("max-cudagraph-capture-size", One, NO_GPU),
    ignored("max-seq-len-to-capture", One, NO_GPU),
    ignored("compilation-config", One, "nothing is compiled at run time"),
    ignored("optimization-level", One, "nothing is compiled at run time"),
    ignored("attention-backend", One, "--isa selects the instruction set"),
    refused("kv-transfer-config", One, ONE_PROCESS),
    refused("kv-events-config", One, ONE_PROCESS),
    refused("ec-transfer-config", One, ONE_PROCESS),
    refused("additional-config", One, NO_GPU),
];
