//! The table of llama.cpp's server flags that Throng has no setting for. Flags of the same meaning as one
//! of Throng's are aliases of it and not listed here. Does not parse.

use super::flag::Values::{Maybe, One, OneWay, Switch};
use super::flag::{ForeignFlag, always, ignored, refused};
use super::flags::{LOG, NO_GPU, POOLING};

const MAPPED: &str = "GGUF and safetensors files are always mapped";
const IN_REQUEST: &str =
    "set it in the request, or for requests that say nothing with --override-generation-config";
const OF_MODEL: &str = "positions are computed as the model's files say";
const BATCH: &str = "--max-num-batched-tokens bounds a step";
const KV_TYPE: &str = "--kv-cache-dtype sets the type of keys and values";
const NOT_SHORTENED: &str = "a conversation that is too long is refused, not shortened";
const AS_FILES_SAY: &str = "the model is computed as its files say";
const DRAFTS: &str = "--speculative-config sets num_speculative_tokens";
const EXPERTS: &str = "--experts-on cpu has the processor compute the experts";
const ONE_THREADS: &str = "--threads is for prompts and answers";

/// llama.cpp's flags.
pub const LLAMA_CPP_FLAGS: &[ForeignFlag] = &[
    // devices
    ignored("n-gpu-layers-draft", One, NO_GPU).also(&["gpu-layers-draft"]),
    ignored("split-mode", One, NO_GPU),
    ignored("tensor-split", One, NO_GPU),
    ignored("main-gpu", One, NO_GPU),
    ignored("override-tensor", One, NO_GPU),
    ignored("cpu-moe", Switch, EXPERTS),
    ignored("n-cpu-moe", One, EXPERTS),
    ignored("no-kv-offload", OneWay, NO_GPU),
    ignored("flash-attn", Maybe, "attention never keeps a matrix of all positions").but(&["on", "auto"]),
    // memory and threads
    always("mmap", Switch, MAPPED),
    ignored("mlock", Switch, "mapped weights stay in memory as long as the system has enough of it"),
    ignored("numa", One, "threads are pinned to the cores that the process may use (taskset)"),
    ignored("threads-batch", One, ONE_THREADS),
    ignored("threads-http", One, "two threads serve all connections"),
    ignored("batch-size", One, BATCH),
    ignored("ubatch-size", One, BATCH),
    always("cont-batching", Switch, "requests always join and leave the batch at every step"),
    refused("cache-type-k", One, KV_TYPE).but(&["f16"]),
    refused("cache-type-v", One, KV_TYPE).but(&["f16"]),
    ignored("cache-reuse", One, "common prefixes are always shared"),
    ignored("keep", One, NOT_SHORTENED),
    refused("context-shift", Switch, NOT_SHORTENED),
    // the model
    refused("hf-file", One, "the file stands after the repository: --model ORG/NAME:FILE.gguf"),
    refused("lora", One, "adapters have names: --lora-modules NAME=PATH"),
    refused(
        "lora-scaled",
        One,
        "adapters have names, and the scale of their files: --lora-modules NAME=PATH",
    ),
    refused("control-vector", One, AS_FILES_SAY),
    ignored("mmproj-offload", Switch, NO_GPU),
    refused("override-kv", One, AS_FILES_SAY),
    refused("rope-scale", One, OF_MODEL),
    refused("rope-freq-base", One, OF_MODEL),
    refused("rope-freq-scale", One, OF_MODEL),
    refused("grp-attn-n", One, OF_MODEL).but(&["1"]),
    ignored("draft-max", One, DRAFTS).also(&["draft"]),
    ignored("draft-min", One, DRAFTS),
    // answers
    always("jinja", Switch, "chat templates are always run"),
    ignored(
        "reasoning-format",
        One,
        "reasoning is a field of its own; --reasoning-parser says how it is found",
    )
    .but(&["auto", "deepseek"]),
    refused("reasoning-budget", One, "set thinking_token_budget in the request").but(&["-1"]),
    ignored("n-predict", One, IN_REQUEST).but(&["-1"]),
    ignored("temp", One, IN_REQUEST),
    ignored("top-k", One, IN_REQUEST),
    ignored("top-p", One, IN_REQUEST),
    ignored("min-p", One, IN_REQUEST),
    ignored("repeat-penalty", One, IN_REQUEST),
    ignored("presence-penalty", One, IN_REQUEST),
    ignored("frequency-penalty", One, IN_REQUEST),
    ignored("samplers", One, "the order of the sampling filters is fixed"),
    // the server
    always("embeddings", Switch, "an embedding model is served as one without a flag").also(&["embedding"]),
    always("reranking", Switch, "a reranking model is served as one without a flag").also(&["rerank"]),
    refused("pooling", One, POOLING),
    always("metrics", Switch, "/metrics always answers"),
    ignored("slots", Switch, "/load and /explain say what runs"),
    ignored("props", Switch, "settings are read at the start only"),
    always("webui", Switch, "the chat page is always at /"),
    refused("path", One, "no files are served; the chat page is at /"),
    refused(
        "api-key-file",
        One,
        "keys come from --api-key, THRONG_API_KEY, or api_keys in the file of --config",
    ),
    ignored(
        "timeout",
        One,
        "header_timeout_s, body_timeout_s and slow_reader_timeout_s in the file of --config",
    ),
    ignored("verbose", OneWay, LOG),
    ignored("log-verbosity", One, LOG).also(&["verbosity"]),
    ignored("log-disable", OneWay, LOG),
    ignored("log-colors", Maybe, LOG),
    ignored("warmup", Switch, "the first request needs no warm-up"),
];

/// llama.cpp's short flags that the parser would misread as several one-letter flags or reject as unknown.
pub const SHORT: [(&str, &str); 27] = [
    ("-ngl", "--gpu-layers"),
    ("-ngld", "--n-gpu-layers-draft"),
    ("-sm", "--split-mode"),
    ("-ts", "--tensor-split"),
    ("-mg", "--main-gpu"),
    ("-ot", "--override-tensor"),
    ("-cmoe", "--cpu-moe"),
    ("-ncmoe", "--n-cpu-moe"),
    ("-nkvo", "--no-kv-offload"),
    ("-fa", "--flash-attn"),
    ("-tb", "--threads-batch"),
    ("-b", "--batch-size"),
    ("-ub", "--ubatch-size"),
    ("-cb", "--cont-batching"),
    ("-nocb", "--no-cont-batching"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-hf", "--hf-repo"),
    ("-hfr", "--hf-repo"),
    ("-hff", "--hf-file"),
    ("-hft", "--hf-token"),
    ("-mm", "--mmproj"),
    ("-md", "--draft-model"),
    ("-np", "--max-num-seqs"),
    ("-to", "--timeout"),
    ("-lv", "--log-verbosity"),
    ("-n", "--n-predict"),
];

/// Flags with an optional value, and the values that may follow as a separate word.
pub const OPTIONAL_VALUES: [(&str, &[&str]); 2] =
    [("--flash-attn", &["on", "off", "auto", "0", "1"]), ("--log-colors", &["on", "off", "auto"])];
