//! The command line: commands and flags, with vLLM's names where a flag means the same. Does not know the
//! machine's defaults.

mod adapters;
mod batch;
mod device;
mod fleet;
mod foreign;
mod help;
mod inspect;
mod keys;
mod launch;
mod local;
mod measuring;
mod model_length;
mod network;
mod observability;
mod rank;
mod rank_count;
mod recommended;
mod terminal;
mod values;
mod version;
mod words;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use serde::Deserialize;
use throng_kernels::Isa;

use crate::bounds::{self, within};
use crate::speculation::{self, SpeculationSection};

use model_length::parse_model_length;
use rank_count::parse_rank_count;
use recommended::parse_recommended;
use values::{model_place, parse_bytes, parse_variables};

pub use adapters::{AdapterArgs, LoraModule};
pub use batch::BatchArgs;
pub use device::{ComputeArgs, DeviceChoice, DevicesArgs, ExpertsOn, GpuLayersChoice};
pub use fleet::{ExchangeBlocks, FleetArgs, FleetCommand, GatewayArgs, WorkerArgs, WorkerRole};
pub use foreign::ForeignArgs;
pub use inspect::{InspectArgs, PullArgs};
pub use keys::{
    AuditArgs, DatabaseArgs, KeysArgs, KeysCommand, Permit, PermitArgs, StoreArgs, StoreCommand, TenantArgs,
    UsageArgs, UsageBy,
};
pub use launch::{Agent, LaunchArgs};
pub use local::{
    CacheArgs, ConfigArgs, ConfigCommand, HandoverArgs, ModelsArgs, ModelsCommand, RemoveArgs, ToolArgs,
    ToolServersArgs, ToolsArgs, ToolsCommand,
};
pub use measuring::{
    AutoscalePolicyArgs, BenchArgs, BenchConstraint, BenchInstead, BenchMachineArgs, BenchServerArgs,
    CalibrateArgs, LoadKind, LoadTargetArgs, PlanArgs, PlanAutoscaleArgs, PlanCommand, PlanCommandArgs,
    PlanFleetArgs, PlanGoal, PlanLoadArgs, PlanPrefill, ReplayArgs, TraceArgs, TraceCommand,
    TraceProfileArgs,
};
pub use model_length::ModelLength;
pub use network::NetworkArgs;
pub use observability::{ExplainArgs, ObservabilityArgs};
pub use rank::RankArgs;
pub use rank_count::RankCount;
pub use recommended::{GenerationConfigSource, RecommendedSampling};
pub use terminal::{ChatArgs, GenerateArgs, RunArgs, SamplingArgs};
pub use values::{LogFormat, Variables, bytes_of, check_variables, parse_isa};
pub use words::is_path;

/// Serve large language models to many users from the hardware you have.
#[derive(Debug, Parser)]
#[command(name = "throng", version, args_conflicts_with_subcommands = true, max_term_width = 100)]
pub struct CommandLine {
    /// The command; `serve` when absent.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The flags of `serve`.
    #[command(flatten)]
    pub serve: ServeArgs,
}

impl CommandLine {
    /// The command line with its version and with help in groups.
    pub fn described() -> clap::Command {
        let command = takes_negative_numbers(takes_underscores(Self::command()));
        help::arranged(command).version(version::version())
    }

    /// Parses the command line of this process. Prints the error and ends the process with status 2 if the
    /// command line is invalid.
    pub fn read() -> Self {
        let mut command = Self::described();
        let words = words_of(std::env::args_os());
        let names = command.get_subcommands().flat_map(clap::Command::get_name_and_visible_aliases);
        let commands: Vec<String> = names.map(str::to_owned).collect();
        if let Err(fault) = words::check(words.get(1..).unwrap_or_default(), &commands) {
            command.error(ErrorKind::UnknownArgument, fault).exit();
        }
        let matches = command.get_matches_from(words);
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// The words of a command line as the parser takes them.
pub fn words_of(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    words::name_servers(words::spell_out(words))
}

/// Parses `-5` after a flag that takes a value as that value, so that the error names the flag's range
/// instead of an unknown flag `-5`.
fn takes_negative_numbers(command: clap::Command) -> clap::Command {
    let takes_value = |arg: &clap::Arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    command
        .mut_args(|arg| {
            if takes_value(&arg) && !arg.is_positional() { arg.allow_negative_numbers(true) } else { arg }
        })
        .mut_subcommands(takes_negative_numbers)
}

/// Accepts `--max_model_len` for `--max-model-len`, as vLLM does.
fn takes_underscores(command: clap::Command) -> clap::Command {
    let spelled = |arg: clap::Arg| match arg.get_long().map(|long| long.replace('-', "_")) {
        Some(alias) if alias.contains('_') => arg.alias(alias),
        _ => arg,
    };
    command.mut_args(spelled).mut_subcommands(takes_underscores)
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer OpenAI-compatible requests, with a chat page at /
    Serve(Box<ServeArgs>),
    /// Compute for gateways: an engine behind an internal listener
    Worker(Box<WorkerArgs>),
    /// Answer as serve does, with the models of workers
    Gateway(Box<GatewayArgs>),
    /// Show the workers of a gateway
    Fleet(FleetArgs),
    /// Run a model in the terminal: chat with it, or answer one prompt
    Run(RunArgs),
    /// Chat with a model in the terminal
    Chat(ChatArgs),
    /// Start a coding agent (claude, codex, opencode) that uses a model of this machine
    Launch(LaunchArgs),
    /// Continue one prompt and print the result
    Generate(GenerateArgs),
    /// Print a model's sizes, formats and how many tokens fit
    Inspect(InspectArgs),
    /// Bring a model into the cache and print where it is
    Pull(PullArgs),
    /// List the GPUs, and whether they work
    Devices(DevicesArgs),
    /// List the models of the cache with their sizes
    #[command(visible_alias = "ls")]
    List(CacheArgs),
    /// Remove models from the cache; a server that has one open goes on with it
    Rm(RemoveArgs),
    /// List the models of the cache, or remove some
    Models(ModelsArgs),
    /// Answer the requests of a file without a server, one a line
    Batch(BatchArgs),
    /// Measure prefill and decode by number of users, without HTTP; or a server, by its URL
    Bench(BenchArgs),
    /// Run a recorded load again, simulated or against a server
    Replay(Box<ReplayArgs>),
    /// Look at recorded loads
    Trace(TraceArgs),
    /// Find the machines that a model and a load need, with times, price and power
    Plan(Box<PlanCommandArgs>),
    /// Measure the steps of a model on this machine, for throng plan
    Calibrate(Box<CalibrateArgs>),
    /// Make, list, revoke and restrict the API keys of a database
    Keys(KeysArgs),
    /// Print what keys, projects or models have used
    Usage(UsageArgs),
    /// Copy or check the database, or print its audit
    Store(StoreArgs),
    /// List and approve the tools of MCP servers that the gateway calls
    Tools(ToolsArgs),
    /// Check a configuration file
    Config(ConfigArgs),
    /// Exchange a server's process without an interruption
    #[command(visible_alias = "reload")]
    Handover(HandoverArgs),
    /// Ask a server where the time of a request went
    Explain(ExplainArgs),
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages into a folder
    #[command(hide = true)]
    Man {
        /// The folder, made if it does not exist
        folder: PathBuf,
    },
    /// Compute a part of a model for a server, which starts this by itself
    #[command(hide = true)]
    Rank(RankArgs),
}

/// Which model to load, and how. Every command that runs a model has these flags.
#[derive(Debug, Clone, Default, Args)]
pub struct ModelArgs {
    /// A folder, a .gguf file, a hub id (org/name, org/name:file.gguf, org/name@revision), or a URL (s3://,
    /// gs://, az://, https://) of a folder or .gguf file; the built-in starter model when absent
    #[arg(value_parser = model_place)]
    pub model: Option<String>,
    /// The model, as vLLM's and llama.cpp's flags
    #[arg(long = "model", short = 'm', alias = "hf-repo", hide = true, conflicts_with = "model", value_name = "MODEL", value_parser = model_place)]
    pub model_flag: Option<String>,
    /// The branch, tag or commit of a hub id
    #[arg(long, value_name = "REVISION")]
    pub revision: Option<String>,
    /// The folder for models from the hub, instead of the cache that HF_HUB_CACHE or HF_HOME names
    #[arg(long, value_name = "DIR")]
    pub download_dir: Option<PathBuf>,
    /// A folder or a tokenizer.json whose tokenizer is used instead of the model's own
    #[arg(long, value_name = "PATH")]
    pub tokenizer: Option<PathBuf>,
    /// The GGUF file with the encoder of pictures, instead of the mmproj file beside the model
    #[arg(long, value_name = "FILE")]
    pub mmproj: Option<PathBuf>,
    /// Maximum tokens of one conversation (32768, 32k), or auto: as many as the model and the KV cache allow
    #[arg(long, short_alias = 'c', visible_alias = "context-length", alias = "ctx-size", value_name = "TOKENS",
        value_parser = parse_model_length)]
    pub max_model_len: Option<ModelLength>,
    /// Device that computes.
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Worker threads
    #[arg(long, short_alias = 't', value_name = "N", value_parser = within(bounds::THREADS))]
    pub threads: Option<usize>,
    /// Processes that share each layer of the model, or auto: one for each NUMA node
    #[arg(long, value_name = "N", value_parser = parse_rank_count)]
    pub tensor_parallel_size: Option<RankCount>,
    /// Processes, or groups of them, that have some of the layers each
    #[arg(long, value_name = "N", value_parser = within(bounds::RANKS))]
    pub pipeline_parallel_size: Option<usize>,
    /// Divide the model although that is expected to be slower than one process
    #[arg(long)]
    pub force: bool,
    /// Quantize a model in F32, F16 or BF16 while it is loaded
    #[arg(long, value_enum, ignore_case = true, value_name = "TYPE")]
    pub quantize: Option<Quantization>,
    /// Keep the weights that --quantize makes in this folder, and read them from there at the next start
    #[arg(long, value_name = "DIR")]
    pub quantize_cache: Option<PathBuf>,
    /// Data type of the KV cache; auto: f32 for f32 models, with AMX bf16 for bf16 and quantized ones, else
    /// f16
    #[arg(long, value_enum, value_name = "TYPE")]
    pub kv_cache_dtype: Option<KvDtype>,
    /// Memory for keys and values, for example 4GiB
    #[arg(long, visible_alias = "kv-cache-memory-bytes", value_name = "BYTES", value_parser = parse_bytes)]
    pub kv_cache_memory: Option<u64>,
    /// Keep keys and values that leave the memory in this folder, also for the next start
    #[arg(long, value_name = "DIR")]
    pub kv_offload_dir: Option<PathBuf>,
    /// Maximum size of what --kv-offload-dir keeps, for example 50GiB
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, requires = "kv_offload_dir")]
    pub kv_offload_bytes: Option<u64>,
    /// Maximum new tokens computed in one step
    #[arg(long, value_name = "TOKENS", value_parser = within(bounds::STEP_TOKENS))]
    pub max_num_batched_tokens: Option<u32>,
    /// Maximum sequences in one step
    #[arg(long, alias = "parallel", value_name = "N", value_parser = within(bounds::STEP_ROWS))]
    pub max_num_seqs: Option<u32>,
    /// Speculative decoding in vLLM's form:
    /// {"method":"ngram","num_speculative_tokens":16,"prompt_lookup_min":3}; no result depends on it
    #[arg(long, value_name = "JSON", value_parser = speculation::parse)]
    pub speculative_config: Option<SpeculationSection>,
    /// A smaller model with the same vocabulary, or an EAGLE-3 head, that guesses the next tokens: a folder,
    /// a .gguf file or a hub id
    #[arg(long, alias = "model-draft", value_name = "MODEL", value_parser = model_place)]
    pub draft_model: Option<String>,
    /// Compute no guesses of the next tokens (prompt lookup is on when absent)
    #[arg(long, conflicts_with_all = ["speculative_config", "draft_model"])]
    pub no_speculation: bool,
    /// A file whose chat template is used instead of the model's own
    #[arg(long, alias = "chat-template-file", value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Refuse a config.json with a key that nothing reads, or with the model_type of no known family
    #[arg(long)]
    pub strict_config: bool,
    /// Compute with the reference backend, in plain loops with unquantized activations: slow, for checking
    #[arg(long)]
    pub reference: bool,
    /// Use this instruction set instead of the processor's best one, for measuring: scalar, avx2, and so on
    #[arg(long, conflicts_with = "reference", value_name = "NAME", value_parser = parse_isa)]
    pub isa: Option<Isa>,
}

impl ModelArgs {
    /// The model, by either flag.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref().or(self.model_flag.as_deref())
    }
}

/// `throng serve`.
#[derive(Debug, Clone, Default, Args)]
pub struct ServeArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The address to listen on
    #[arg(long, env = "THRONG_HOST")]
    pub host: Option<String>,
    /// The port to listen on; 0 takes a free one
    #[arg(long, short, env = "THRONG_PORT")]
    pub port: Option<u16>,
    /// Names to serve the model under, instead of its own; stands after the model
    #[arg(long, short_alias = 'a', alias = "alias", num_args = 1.., value_name = "NAME",
        value_parser = bounds::model_name)]
    pub served_model_name: Vec<String>,
    /// API keys, separated by commas; each request must have one of them
    #[arg(long, env = "THRONG_API_KEY", hide_env_values = true, value_delimiter = ',', value_name = "KEY")]
    pub api_key: Vec<String>,
    /// A TOML file with the same settings; flags override it
    #[arg(long, env = "THRONG_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Defaults for a kind of machine: desktop, service (many clients) or edge (little memory)
    #[arg(long, value_enum, value_name = "PROFILE")]
    pub profile: Option<Profile>,
    /// Serve on an address that other machines can reach although no key is set
    #[arg(long)]
    pub allow_unauthenticated: bool,
    /// Maximum waiting requests; further ones get 503
    #[arg(long, value_name = "N", value_parser = within(bounds::QUEUED_REQUESTS))]
    pub max_num_queued_reqs: Option<u32>,
    /// Maximum waiting prompt tokens; further requests get 503
    #[arg(long, value_name = "TOKENS", value_parser = within(bounds::QUEUED_TOKENS))]
    pub max_num_queued_tokens: Option<u64>,
    /// Maximum memory that all requests hold together, for example 144MiB; further requests get 503
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub max_request_memory: Option<u64>,
    /// Order of the requests of one key: fcfs (by arrival) or priority (the smaller number first)
    #[arg(long, value_enum)]
    pub scheduling_policy: Option<SchedulingPolicy>,
    /// The smallest priority a request may have; a smaller one is raised to it
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub most_urgent_priority: Option<i32>,
    /// The time between two tokens of a stream that long prompts must not exceed, in milliseconds
    #[arg(long, value_name = "MS", value_parser = within(bounds::INTER_TOKEN_MS))]
    pub inter_token_target_ms: Option<u32>,
    /// Disable prefix caching
    #[arg(long)]
    pub no_enable_prefix_caching: bool,
    /// Maximum log-probabilities a request may ask for; -1: as many as the vocabulary
    #[arg(long, value_name = "N", value_parser = within(bounds::LOGPROBS))]
    pub max_logprobs: Option<i64>,
    /// Where default sampling settings come from: auto (the model's generation_config.json) or vllm (neutral)
    #[arg(long, value_name = "SOURCE")]
    pub generation_config: Option<GenerationConfigSource>,
    /// Sampling settings for requests that say nothing: {"temperature": 0.6, "top_p": 0.95, "max_new_tokens":
    /// 1024}
    #[arg(long, value_name = "JSON", value_parser = parse_recommended)]
    pub override_generation_config: Option<RecommendedSampling>,
    /// Variables for the chat template where a request does not set them: {"enable_thinking": false}
    #[arg(long, value_name = "JSON", value_parser = parse_variables)]
    pub default_chat_template_kwargs: Option<Variables>,
    /// How the model writes tool calls, by vLLM's names (hermes, llama3_json, mistral, openai, ...), or none
    #[arg(long, value_name = "NAME", value_parser = bounds::tool_call_parser)]
    pub tool_call_parser: Option<String>,
    /// How the model marks its reasoning, by vLLM's names (qwen3, deepseek_r1, openai_gptoss, ...), or none
    #[arg(long, value_name = "NAME", value_parser = bounds::reasoning_parser)]
    pub reasoning_parser: Option<String>,
    /// Answer GET /tokenizer_info with the tokenizer's configuration and chat template
    #[arg(long)]
    pub enable_tokenizer_info_endpoint: bool,
    /// Refuse unknown parameters with 400 instead of ignoring them
    #[arg(long)]
    pub strict_parameters: bool,
    /// Let the operator bring models into the cache with POST /api/pull, until it has this size, as 200GiB
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub max_pulled_bytes: Option<u64>,
    /// The format of the log on standard error: text, or json with one object a line
    #[arg(long, env = "THRONG_LOG_FORMAT", value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// How the server is reached.
    #[command(flatten)]
    pub network: NetworkArgs,
    /// What is told of requests.
    #[command(flatten)]
    pub observability: ObservabilityArgs,
    /// Tools that the gateway calls.
    #[command(flatten)]
    pub tools: ToolArgs,
    /// On SIGTERM, seconds for running streams to finish
    #[arg(long, value_name = "SECONDS", value_parser = within(bounds::SHUTDOWN_TIMEOUT_S))]
    pub shutdown_timeout: Option<u64>,
    /// Fail a step that takes longer than this many seconds
    #[arg(long, visible_alias = "watchdog-timeout", value_name = "SECONDS", value_parser = within(bounds::STEP_TIMEOUT_S))]
    pub step_timeout: Option<u64>,
    /// Adapters over the model.
    #[command(flatten)]
    pub adapters: AdapterArgs,
    /// vLLM's and llama.cpp's flags that Throng has no setting for.
    #[command(flatten)]
    pub foreign: ForeignArgs,
}

/// The formats for quantization at load time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, non_camel_case_types, reason = "the names are those of the formats")]
pub enum Quantization {
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_0")]
    Q4_0,
    #[value(name = "q4_k")]
    Q4_K,
}

/// The data type of the KV cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it")]
pub enum KvDtype {
    #[default]
    Auto,
    F32,
    F16,
    BF16,
    #[value(name = "q8_0")]
    Q8_0,
}

/// Defaults for a kind of machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// One person or a few: the defaults.
    Desktop,
    /// A server for many clients.
    Service,
    /// A machine with little memory.
    Edge,
}

/// The scheduling policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SchedulingPolicy {
    /// In order of arrival.
    Fcfs,
    /// The smaller priority number first.
    Priority,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::described().debug_assert();
    }

    #[test]
    fn only_some_formats_are_accepted_for_quantization_in_any_case() {
        let quantize = |name| {
            CommandLine::try_parse_from(["throng", "model", "--quantize", name])
                .map(|line| line.serve.model.quantize)
        };
        assert_eq!(quantize("q4_k").expect("valid"), Some(Quantization::Q4_K));
        assert_eq!(quantize("Q8_0").expect("valid"), Some(Quantization::Q8_0));
        let error = quantize("q4_k_m").expect_err("not a format").to_string();
        assert!(error.contains("invalid value 'q4_k_m' for '--quantize <TYPE>'"), "{error}");
        assert!(error.contains("[possible values: q8_0, q4_0, q4_k]"), "{error}");
    }

    #[test]
    fn underscores_are_dashes() {
        let line = ["throng", "serve", "--max_num_seqs=3", "--no_enable_prefix_caching", "--swap_space", "4"];
        let matches = CommandLine::described().try_get_matches_from(line).expect("valid");
        let line = CommandLine::from_arg_matches(&matches).expect("valid");
        let Some(Command::Serve(serve)) = line.command else { panic!("{line:?}") };
        assert!(serve.model.max_num_seqs == Some(3) && serve.no_enable_prefix_caching);
        assert!(serve.foreign.notices().expect("ignored")[0].starts_with("--swap-space is ignored"));
    }

    #[test]
    fn no_command_means_serve() {
        let line = CommandLine::try_parse_from(["throng", "model.gguf", "--port", "9"]).expect("valid");
        assert!(line.command.is_none());
        assert_eq!(line.serve.model.model.as_deref(), Some("model.gguf"));
        assert_eq!(line.serve.port, Some(9));
    }
}
