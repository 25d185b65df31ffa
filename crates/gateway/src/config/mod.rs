//! Settings of the gateway, with defaults. Does not read flags, files and the environment.

mod autoscale;
mod moderation;
mod on_demand;
mod overload;
mod routing;
mod semantic_cache;
mod state;

use std::net::Ipv6Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use throng_api::{ImageHosts, InvalidImageHost};
use throng_fleet::Secret;
use throng_http::TlsConfig;
use throng_metering::ledger::ModelPrice;

pub use self::autoscale::AutoscaleSection;
pub use self::moderation::{ClassifierConfig, ModerationConfig, ModerationRule, OnFailure};
pub use self::on_demand::{OnDemandConfig, OnRequest};
pub use self::overload::{ClassSetting, OverloadConfig};
pub use self::routing::{
    ModelAlias, ResidencyRule, RoutingConfig, RoutingPolicy, ShadowConfig, WeightedModel,
};
pub(crate) use self::semantic_cache::check as check_semantic_cache;
pub use self::state::StateConfig;
pub use throng_auth::{ClaimNames, TokenConfig};
pub use throng_cache::{ResponseCacheConfig, SemanticCacheConfig, SemanticMode};
pub use throng_tools::ToolsConfig;

/// All sections of the gateway.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewayConfig {
    /// Sockets and their limits.
    pub server: ServerConfig,
    /// Certificates, if connections are encrypted.
    pub tls: Option<TlsConfig>,
    /// Keys, tokens and origins.
    pub access: AccessConfig,
    /// Bounds on requests.
    pub api: ApiConfig,
    /// Prices of tokens.
    pub prices: Vec<ModelPrice>,
    /// Settings of observability.
    pub observability: ObservabilityConfig,
    /// Limits of waiting and running times.
    pub overload: OverloadConfig,
    /// Settings of routing.
    pub routing: RoutingConfig,
    /// Moderation rules and classifier.
    pub moderation: ModerationConfig,
    /// Settings of the cache of answers to equal requests.
    pub response_cache: ResponseCacheConfig,
    /// Settings of the cache of answers to similar questions; `None` disables it.
    pub semantic_cache: Option<SemanticCacheConfig>,
    /// Settings of models that are loaded on demand.
    pub on_demand: OnDemandConfig,
    /// Settings for the number of workers.
    pub autoscale: AutoscaleSection,
    /// Bounds and retention of objects that are kept between requests.
    pub state: StateConfig,
    /// Tools that the gateway calls for its clients; none by default.
    pub tools: ToolsConfig,
}

/// Memory for parsing a body, as a multiple of its bytes, the body included. Resident memory of a release
/// build rose with bodies of 8 MB by this multiple of their bytes: one text 2.6, text parts 2.1, an object
/// in the arguments of a call 3.7, a list of token ids 4.3 (a copy for the engine included), an ignored key
/// 3.7.
pub(crate) const PARSE_FACTOR: usize = 4;
/// Memory for rendering and tokenizing a text, as a multiple of its bytes.
pub(crate) const RENDER_FACTOR: usize = 4;

impl GatewayConfig {
    /// Maximum bytes of memory for all requests: the setting, but at least one request with the largest
    /// body and the largest answer. A large reservation may take three quarters of it.
    pub(crate) fn memory_limit_bytes(&self) -> usize {
        let of_body = self.api.max_body_bytes.saturating_mul(PARSE_FACTOR + RENDER_FACTOR);
        let of_answer = self.api.max_answer_bytes.saturating_mul(2);
        let largest = of_body.max(of_answer);
        self.server.max_request_memory_bytes.max(largest.saturating_add(largest / 2))
    }
}

/// Sockets and their limits.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Address or host name to listen on.
    pub host: String,
    /// TCP port; 0 lets the system choose one.
    pub port: u16,
    /// Additional port for clients of Ollama; usually 11434.
    pub ollama_port: Option<u16>,
    /// A Unix domain socket to listen on instead of host and port.
    pub uds: Option<PathBuf>,
    /// Maximum number of open connections; more wait in the kernel's backlog.
    pub max_connections: usize,
    /// Longest time in seconds from the first byte of a request to the end of its head.
    pub header_timeout_s: u64,
    /// Longest time in seconds from a request's head to the end of its body.
    pub body_timeout_s: u64,
    /// Seconds without a request after which a kept-alive connection is closed.
    pub idle_timeout_s: u64,
    /// Seconds without progress after which a client with data to receive is disconnected.
    pub slow_reader_timeout_s: u64,
    /// Seconds after which a WebSocket connection without a request is closed.
    pub websocket_idle_timeout_s: u64,
    /// Seconds after which a WebSocket connection is closed, once its running responses have ended.
    pub websocket_max_age_s: u64,
    /// Seconds for running requests to end at shutdown, after which they are aborted.
    pub shutdown_timeout_s: u64,
    /// Path under which a proxy shows the server (`/llm`), or empty. Requests are answered with and without
    /// it.
    pub root_path: String,
    /// Maximum bytes of memory for all requests: bodies, prompts, answers, sockets. Requests beyond it are
    /// answered with 503. Raised to the memory that one request of `max_body_bytes` needs.
    pub max_request_memory_bytes: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 8000,
            ollama_port: None,
            uds: None,
            max_connections: 16_384,
            header_timeout_s: 10,
            body_timeout_s: 30,
            idle_timeout_s: 75,
            slow_reader_timeout_s: 30,
            websocket_idle_timeout_s: 15 * 60,
            websocket_max_age_s: 60 * 60,
            shutdown_timeout_s: 30,
            root_path: String::new(),
            max_request_memory_bytes: 144 << 20,
        }
    }
}

impl ServerConfig {
    /// The host, without the brackets in which URLs write an IPv6 address.
    pub fn host_name(&self) -> &str {
        let inner = self.host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        inner.filter(|host| host.parse::<Ipv6Addr>().is_ok()).unwrap_or(&self.host)
    }
}

/// Keys, tokens and origins.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessConfig {
    /// Accepted API keys; each is a tenant of its own. Without any, anyone who can connect may send
    /// requests.
    pub api_keys: Vec<Secret>,
    /// Database of keys: a path, `sqlite:PATH` or `postgres://…`. With one, each request must have a key,
    /// even if the database has none.
    pub database: Option<String>,
    /// Path prefix of the files in which ledger entries wait for the database, on a local disk. By default
    /// beside a SQLite database, else in the user's folder for state.
    pub ledger_journal: Option<PathBuf>,
    /// Redis through which gateways share the limits of keys: `redis://…` or `rediss://…`. Without it each
    /// gateway has its own.
    pub redis: Option<Secret>,
    /// PEM file of certificate authorities for `rediss://`; the system's by default.
    pub redis_ca: Option<PathBuf>,
    /// Minimum number of gateways that share limits: each uses an equal part while Redis has never
    /// answered. 1 by default.
    pub redis_gateways: Option<u32>,
    /// The operator's key. With it, and wherever clients need keys, no client's key opens operators'
    /// routes.
    pub admin_key: Option<Secret>,
    /// Additional address of the operator's API, `ADDRESS:PORT`.
    pub admin_listen: Option<String>,
    /// Tokens of an identity provider, which are accepted beside keys.
    pub tokens: Option<TokenConfig>,
    /// Whether the server may listen without API keys on an address that other machines can reach.
    pub allow_unauthenticated: bool,
    /// Browser origins (`scheme://host[:port]`, or `*`) that may call the API from their pages. None by
    /// default.
    pub allowed_origins: Vec<String>,
    /// Methods that those pages may use; empty or with `*`: any.
    pub allowed_methods: Vec<String>,
    /// Request headers that those pages may send; empty or with `*`: any.
    pub allowed_headers: Vec<String>,
    /// Whether those pages may send cookies.
    pub allow_credentials: bool,
    /// `Host` names accepted beside the loopback ones when listening on loopback only; on other addresses
    /// without keys, names under which web pages may use the server beside IP addresses and the name listened
    /// on. `*`: any.
    pub allowed_hosts: Vec<String>,
    /// The smallest `priority` a request may have; a smaller one is raised to it. Clients without a key are
    /// one tenant: by default none of them can pass the others.
    pub most_urgent_priority: i32,
}

impl AccessConfig {
    /// Whether each request must have a key.
    pub(crate) fn needs_key(&self) -> bool {
        !self.api_keys.is_empty() || self.database.is_some() || self.tokens.is_some()
    }
}

/// Bounds on requests.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApiConfig {
    /// Whether unknown request parameters are answered with 400 instead of ignored.
    pub strict_parameters: bool,
    /// Whether `GET /tokenizer_info`, which shows the chat template, is answered.
    pub tokenizer_info: bool,
    /// Largest request body in bytes.
    pub max_body_bytes: usize,
    /// Maximum number of stop strings in one request.
    pub max_stop_strings: usize,
    /// Hosts from which the images of requests are fetched: `HOST`, `HOST:PORT`, or `private:HOST:PORT` for
    /// one that may have a private address. None by default: images are files in requests.
    pub allowed_media_domains: Vec<String>,
    /// Maximum number of alternatives in a token's log-probabilities.
    pub max_logprobs: u32,
    /// Maximum number of choices (prompts × `n`) in one request.
    pub max_choices: usize,
    /// Maximum number of bodies parsed and tokenized at a time, half of them over 64 KiB.
    pub max_concurrent_tokenizations: usize,
    /// Maximum number of waiting requests, for bodies up to 64 KiB and for larger ones each; beyond it the
    /// answer is 503.
    pub max_queued_tokenizations: usize,
    /// Longest wait of a request in seconds before it is parsed and tokenized; beyond it the answer is 503.
    pub tokenization_timeout_s: u64,
    /// Maximum bytes of an answer that is not streamed. Requests for more are answered with 400.
    pub max_answer_bytes: usize,
    /// Interval in seconds at which a silent stream sends the comment `: ping`.
    pub ping_interval_s: u64,
    /// Earlier name of [`StateConfig::retention_days`] for responses, in seconds; 0: until they are deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_retention_s: Option<u64>,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            strict_parameters: false,
            tokenizer_info: false,
            max_body_bytes: 8 << 20,
            max_stop_strings: 4,
            allowed_media_domains: Vec::new(),
            max_logprobs: 20,
            max_choices: 128,
            max_concurrent_tokenizations: 4,
            max_queued_tokenizations: 512,
            tokenization_timeout_s: 30,
            max_answer_bytes: 32 << 20,
            ping_interval_s: 15,
            response_retention_s: None,
        }
    }
}

impl ApiConfig {
    /// Reads the hosts from which images are fetched.
    ///
    /// # Errors
    /// The first entry that is no host.
    pub fn image_hosts(&self) -> Result<ImageHosts, InvalidImageHost> {
        ImageHosts::new(self.allowed_media_domains.iter().map(String::as_str))
    }
}

/// Settings of logs, metrics and traces.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ObservabilityConfig {
    /// File for a line of JSON for each request; `-` is standard output.
    pub access_log: Option<PathBuf>,
    /// Whether those lines have the beginning of the request's body, which may contain private text.
    pub access_log_bodies: bool,
    /// Collector of traces, by OTLP over HTTP: `http://127.0.0.1:4318`.
    pub otlp_endpoint: Option<String>,
    /// File to which the load is recorded without text: arrivals, lengths, salted names of prompt blocks,
    /// ends.
    pub record: Option<PathBuf>,
    /// Number of finished requests that are kept for `/explain`.
    pub max_explained_requests: usize,
}

impl Default for ObservabilityConfig {
    fn default() -> Self {
        let (access_log, otlp_endpoint, record) = (None, None, None);
        Self { access_log, access_log_bodies: false, otlp_endpoint, record, max_explained_requests: 1024 }
    }
}
