//! The flags of `throng worker`, `throng gateway` and `throng fleet`. Does not know workers.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde::Deserialize;
use throng_core::fleet::routing::Role;
use throng_gateway::RoutingPolicy;

use super::values::parse_bytes;
use super::{
    AdapterArgs, LogFormat, ModelArgs, NetworkArgs, ObservabilityArgs, Profile, ServeArgs, ToolArgs,
};
use crate::bounds::{self, within};

/// Exchange of keys and values between the workers of a fleet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExchangeBlocks {
    /// Where it costs no speed.
    #[default]
    Auto,
    /// Also on a device that could otherwise have two steps in flight.
    On,
    /// Never.
    Off,
}

/// Part of requests that a worker is meant for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerRole {
    /// Long prompts, for the answers of other workers.
    Prefill,
    /// Answers.
    Decode,
    /// Both.
    #[default]
    Both,
}

impl From<WorkerRole> for Role {
    fn from(role: WorkerRole) -> Self {
        match role {
            WorkerRole::Prefill => Self::Prefill,
            WorkerRole::Decode => Self::Decode,
            WorkerRole::Both => Self::Both,
        }
    }
}

/// `throng worker`.
#[derive(Debug, Clone, Args)]
pub struct WorkerArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The address for gateways, not for clients: 127.0.0.1:9000; port 0 takes a free one
    #[arg(long, env = "THRONG_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:9000")]
    pub listen: SocketAddr,
    /// The token that gateways must have
    #[arg(long, env = "THRONG_WORKER_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub worker_token: Option<String>,
    /// The region where this worker is
    #[arg(long, value_name = "NAME", value_parser = bounds::region)]
    pub region: Option<String>,
    /// Exchange keys and values of prompts with other workers: auto (where it costs no speed), on or off
    #[arg(long, value_enum, value_name = "WHEN")]
    pub exchange_blocks: Option<ExchangeBlocks>,
    /// Role of the worker: prefill (long prompts, for the answers of others), decode (answers) or both
    #[arg(long, value_enum, value_name = "ROLE")]
    pub role: Option<WorkerRole>,
    /// The certificates that those of other throngs:// workers must come from (PEM)
    #[arg(long, value_name = "FILE")]
    pub peer_ca: Option<PathBuf>,
    /// Names to serve the model under, instead of its own; stands after the model
    #[arg(long, num_args = 1.., value_name = "NAME", value_parser = bounds::model_name)]
    pub served_model_name: Vec<String>,
    /// A TOML file with these settings and more; flags override it
    #[arg(long, env = "THRONG_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Defaults for a kind of machine: desktop, service (many clients) or edge (little memory)
    #[arg(long, value_enum, value_name = "PROFILE")]
    pub profile: Option<Profile>,
    /// Encrypt connections with this certificate (PEM, followed by its chain); read again when it changes
    #[arg(long, value_name = "FILE", requires = "ssl_keyfile")]
    pub ssl_certfile: Option<PathBuf>,
    /// The certificate's private key (PEM, not encrypted)
    #[arg(long, value_name = "FILE", requires = "ssl_certfile")]
    pub ssl_keyfile: Option<PathBuf>,
    /// Demand certificates of gateways that come from these (PEM)
    #[arg(long, value_name = "FILE", requires = "ssl_certfile")]
    pub ssl_ca_certs: Option<PathBuf>,
    /// How the model writes tool calls, by vLLM's names (hermes, llama3_json, mistral, openai, ...), or none
    #[arg(long, value_name = "NAME", value_parser = bounds::tool_call_parser)]
    pub tool_call_parser: Option<String>,
    /// How the model marks its reasoning, by vLLM's names (qwen3, deepseek_r1, openai_gptoss, ...), or none
    #[arg(long, value_name = "NAME", value_parser = bounds::reasoning_parser)]
    pub reasoning_parser: Option<String>,
    /// Adapters over the model.
    #[command(flatten)]
    pub adapters: AdapterArgs,
    /// The format of the log on standard error: text, or json with one object a line
    #[arg(long, env = "THRONG_LOG_FORMAT", value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Record the load to this file, without its text: arrivals, lengths, salted names of prompt blocks, ends
    /// and step times, for throng replay and throng trace
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// On SIGTERM, seconds for running requests to finish
    #[arg(long, value_name = "SECONDS", value_parser = within(bounds::SHUTDOWN_TIMEOUT_S))]
    pub shutdown_timeout: Option<u64>,
}

impl WorkerArgs {
    /// The same settings as flags of `throng serve`.
    pub fn as_serve(&self) -> ServeArgs {
        let this = self.clone();
        ServeArgs {
            model: this.model,
            host: Some(this.listen.ip().to_string()),
            port: Some(this.listen.port()),
            served_model_name: this.served_model_name,
            config: this.config,
            profile: this.profile,
            tool_call_parser: this.tool_call_parser,
            reasoning_parser: this.reasoning_parser,
            adapters: this.adapters,
            shutdown_timeout: this.shutdown_timeout,
            network: NetworkArgs {
                ssl_certfile: this.ssl_certfile,
                ssl_keyfile: this.ssl_keyfile,
                ssl_ca_certs: this.ssl_ca_certs,
                ..NetworkArgs::default()
            },
            observability: ObservabilityArgs { record: this.record, ..ObservabilityArgs::default() },
            ..ServeArgs::default()
        }
    }
}

/// `throng gateway`.
#[derive(Debug, Clone, Args)]
pub struct GatewayArgs {
    /// A worker, throng://HOST:PORT; workers that come and go, file:///PATH, dns://NAME:PORT, srv://NAME or
    /// kubernetes://NAMESPACE/SERVICE:PORT; an engine with OpenAI's API, https://HOST/v1; again for each
    /// further one
    #[arg(long, env = "THRONG_REPLICA", value_delimiter = ',', value_name = "URL")]
    pub replica: Vec<String>,
    /// How one of a model's replicas is chosen: least-ttft, least-tokens, power-of-two or round-robin
    #[arg(long, value_name = "POLICY")]
    pub routing: Option<RoutingPolicy>,
    /// The region where this gateway is; replicas of the same region are the nearest
    #[arg(long, value_name = "NAME", value_parser = bounds::region)]
    pub region: Option<String>,
    /// The token that the workers ask for
    #[arg(long, env = "THRONG_WORKER_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub worker_token: Option<String>,
    /// The API key of the engines
    #[arg(long, env = "THRONG_REPLICA_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub replica_api_key: Option<String>,
    /// The certificates that those of throngs:// workers and https:// engines must come from (PEM)
    #[arg(long, value_name = "FILE")]
    pub replica_ca: Option<PathBuf>,
    /// The certificate to show to workers (PEM)
    #[arg(long, value_name = "FILE", requires = "replica_key")]
    pub replica_cert: Option<PathBuf>,
    /// Its private key (PEM, not encrypted)
    #[arg(long, value_name = "FILE", requires = "replica_cert")]
    pub replica_key: Option<PathBuf>,
    /// The address to listen on
    #[arg(long, env = "THRONG_HOST")]
    pub host: Option<String>,
    /// The port to listen on; 0 takes a free one
    #[arg(long, short, env = "THRONG_PORT")]
    pub port: Option<u16>,
    /// API keys, separated by commas; each request must have one of them
    #[arg(long, env = "THRONG_API_KEY", hide_env_values = true, value_delimiter = ',', value_name = "KEY")]
    pub api_key: Vec<String>,
    /// A TOML file with these settings and more; flags override it
    #[arg(long, env = "THRONG_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Defaults for a kind of machine: desktop, service (many clients) or edge (little memory)
    #[arg(long, value_enum, value_name = "PROFILE")]
    pub profile: Option<Profile>,
    /// Serve on an address that other machines can reach although no key is set
    #[arg(long)]
    pub allow_unauthenticated: bool,
    /// Maximum memory that all requests hold together, for example 144MiB; further requests get 503
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub max_request_memory: Option<u64>,
    /// Refuse unknown parameters with 400 instead of ignoring them
    #[arg(long)]
    pub strict_parameters: bool,
    /// How the gateway is reached.
    #[command(flatten)]
    pub network: NetworkArgs,
    /// What is told of requests.
    #[command(flatten)]
    pub observability: ObservabilityArgs,
    /// Tools that the gateway calls.
    #[command(flatten)]
    pub tools: ToolArgs,
    /// The format of the log on standard error: text, or json with one object a line
    #[arg(long, env = "THRONG_LOG_FORMAT", value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// On SIGTERM, seconds for running streams to finish
    #[arg(long, value_name = "SECONDS", value_parser = within(bounds::SHUTDOWN_TIMEOUT_S))]
    pub shutdown_timeout: Option<u64>,
}

impl GatewayArgs {
    /// The same settings as flags of `throng serve`.
    pub fn as_serve(&self) -> ServeArgs {
        let this = self.clone();
        ServeArgs {
            host: this.host,
            port: this.port,
            api_key: this.api_key,
            config: this.config,
            profile: this.profile,
            allow_unauthenticated: this.allow_unauthenticated,
            max_request_memory: this.max_request_memory,
            strict_parameters: this.strict_parameters,
            network: this.network,
            observability: this.observability,
            tools: this.tools,
            shutdown_timeout: this.shutdown_timeout,
            ..ServeArgs::default()
        }
    }
}

/// `throng fleet`.
#[derive(Debug, Clone, Args)]
pub struct FleetArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: FleetCommand,
}

/// What to do with a fleet.
#[derive(Debug, Clone, Subcommand)]
pub enum FleetCommand {
    /// Show the workers of a gateway; on a terminal, again every second until Ctrl-C
    Status {
        /// The gateway
        #[arg(long, default_value = "http://127.0.0.1:8000", value_name = "URL")]
        url: String,
        /// The operator's key of the gateway, where it has keys; clients' keys are refused
        #[arg(
            long = "admin-key",
            visible_alias = "api-key",
            env = "THRONG_ADMIN_KEY",
            hide_env_values = true,
            value_name = "KEY"
        )]
        api_key: Option<String>,
        /// Show them once
        #[arg(long)]
        once: bool,
    },
}
