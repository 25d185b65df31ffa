//! The arguments of `throng chat` and `throng generate`. Does not know how text is read and written.

use clap::Args;

use super::ModelArgs;
use crate::bounds::{self, within};

/// Flags that determine how a model is loaded; a running server's model is already loaded.
const OF_LOADING: [&str; 9] = [
    "revision",
    "tokenizer",
    "max_model_len",
    "threads",
    "quantize",
    "kv_cache_dtype",
    "kv_cache_memory",
    "kv_offload_dir",
    "chat_template",
];

/// `throng chat`.
#[derive(Debug, Clone, Args)]
pub struct ChatArgs {
    /// The model; with --url its name on the server, the server's first one when absent
    #[command(flatten)]
    pub model: ModelArgs,
    /// Chat with the server at this address instead of loading a model: http://127.0.0.1:8000
    #[arg(long, value_name = "URL", conflicts_with_all = OF_LOADING)]
    pub url: Option<String>,
    /// The server's API key
    #[arg(long, env = "THRONG_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub api_key: Option<String>,
    /// The system prompt
    #[arg(long, alias = "system-prompt")]
    pub system: Option<String>,
    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

impl ChatArgs {
    /// Whether a flag determines how the model is loaded, so that a running server cannot answer.
    pub fn loads_itself(&self) -> bool {
        let model = &self.model;
        model.revision.is_some()
            || model.tokenizer.is_some()
            || model.max_model_len.is_some()
            || model.threads.is_some()
            || model.quantize.is_some()
            || model.kv_cache_dtype.is_some()
            || model.kv_cache_memory.is_some()
            || model.kv_offload_dir.is_some()
            || model.chat_template.is_some()
            || model.draft_model.is_some()
            || model.compute.device.is_some()
            || model.compute.gpu_layers.is_some()
            || model.compute.experts_on.is_some()
            || model.reference
            || model.isa.is_some()
    }
}

/// `throng run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// How a chat runs.
    #[command(flatten)]
    pub chat: ChatArgs,
    /// The prompt to answer, behind what comes from standard input; a chat when there is neither
    #[arg(value_name = "PROMPT")]
    pub prompt: Vec<String>,
}

/// `throng generate`.
#[derive(Debug, Clone, Args)]
pub struct GenerateArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The text to continue; read from standard input when absent
    #[arg(long, short)]
    pub prompt: Option<String>,
    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// How tokens are chosen in the terminal.
#[derive(Debug, Clone, Args)]
pub struct SamplingArgs {
    /// Maximum tokens of an answer
    #[arg(long, alias = "n-predict", default_value_t = 512, value_name = "N", value_parser = within(bounds::ANSWER_TOKENS))]
    pub max_tokens: u32,
    /// Temperature; 0 always takes the most likely token; the model's own default when absent
    #[arg(long, alias = "temp", value_name = "T", value_parser = within(bounds::TEMPERATURE))]
    pub temperature: Option<f32>,
    /// Keep the most likely tokens that together reach this probability
    #[arg(long, value_name = "P", value_parser = bounds::probability)]
    pub top_p: Option<f32>,
    /// Repeat an answer: the same seed gives the same tokens
    #[arg(long)]
    pub seed: Option<u64>,
}
