//! What an operator can set about the gateway, with good defaults. Does not know where settings come from:
//! flags, files and the environment are read elsewhere.

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
pub use throng_cache::{ResponseCacheConfig, SemanticCacheConfig, SemanticMode};
pub use throng_tools::ToolsConfig;

/// All sections of the gateway.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewayConfig {
    /// Sockets and their limits.
    pub server: ServerConfig,
    /// Certificates; connections are encrypted if there are some.
    pub tls: Option<TlsConfig>,
    /// Keys, tokens and origins.
    pub access: AccessConfig,
    /// Bounds on requests.
    pub api: ApiConfig,
    /// Prices of tokens.
    pub prices: Vec<ModelPrice>,
    /// Settings of observability.
    pub observability: ObservabilityConfig,
    /// Limits of waiting.
    pub overload: OverloadConfig,
    /// Settings of routing.
    pub routing: RoutingConfig,
    /// Rules about texts that are not to be sent.
    pub moderation: ModerationConfig,
    /// Answers that are kept for equal requests.
    pub response_cache: ResponseCacheConfig,
    /// Answers for questions that mean the same as one that was answered before; off without it.
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

/// Parsing a body takes at most about this many times its bytes, the body included. Resident memory of a
/// release build rose with bodies of 8 MB by this many times their bytes: one text 2.6, text parts 2.1, an
/// object in the arguments of a call 3.7, a list of token ids 4.3 (a copy for the engine included), an
/// ignored key 3.7.
pub(crate) const PARSE_FACTOR: usize = 4;
/// Rendering and tokenizing a text takes at most about this many times its bytes.
pub(crate) const RENDER_FACTOR: usize = 4;

impl GatewayConfig {
    /// Most bytes that all requests together hold: as the operator set it, but enough for one request with
    /// the largest body and for the largest answer. A large reservation may take three quarters of it.
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
    /// The port on which clients that look for Ollama are answered besides; usually 11434.
    pub ollama_port: Option<u16>,
    /// A Unix domain socket to listen on instead of host and port.
    pub uds: Option<PathBuf>,
    /// Connections open at a time; more wait in the kernel's backlog.
    pub max_connections: usize,
    /// A request's head must arrive within this many seconds of its first byte.
    pub header_timeout_s: u64,
    /// A request's body must arrive within this many seconds of its head.
    pub body_timeout_s: u64,
    /// A kept-alive connection without a request is closed after this many seconds.
    pub idle_timeout_s: u64,
    /// A client that takes nothing for this many seconds while there is something to send is dropped.
    pub slow_reader_timeout_s: u64,
    /// Seconds for which running requests may go on at shutdown; then they are cut.
    pub shutdown_timeout_s: u64,
    /// The path under which a proxy shows the server (`/llm`), or empty. Requests are answered with it and
    /// without.
    pub root_path: String,
    /// Most bytes that all requests together hold: bodies, prompts, answers, sockets. What does not fit is
    /// answered with 503. Never less than what one request of `max_body_bytes` needs.
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
    /// Accepted API keys; each is a tenant of its own. Empty: anyone who can connect may ask.
    pub api_keys: Vec<Secret>,
    /// The database with more keys: a path, `sqlite:PATH` or `postgres://…`. With one, each request must have
    /// a key, also while it has none.
    pub database: Option<String>,
    /// The beginning of the names of the files in which the ledger's entries wait for the database, on a
    /// local disk. When absent, beside a SQLite database, else in the user's folder for state.
    pub ledger_journal: Option<PathBuf>,
    /// The Redis through which gateways share the limits of keys: `redis://…` or `rediss://…`. Each gateway
    /// by itself without one.
    pub redis: Option<Secret>,
    /// The certificates (PEM) that this Redis' own must come from, for `rediss://`; the system's when absent.
    pub redis_ca: Option<PathBuf>,
    /// Least number of gateways that share limits: each uses such a part of them where Redis has never
    /// answered. One when absent.
    pub redis_gateways: Option<u32>,
    /// The operator's key, which no client has. With it, and wherever clients need keys, no other key opens
    /// operators' routes.
    pub admin_key: Option<Secret>,
    /// Further address of the operator's API, `ADDRESS:PORT`.
    pub admin_listen: Option<String>,
    /// Tokens of an identity provider, which are accepted beside keys.
    pub tokens: Option<TokenConfig>,
    /// Allows listening on an address other machines can reach without any API key.
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
    /// `Host` names accepted beside the loopback ones when listening on loopback only; elsewhere, where no
    /// key is needed, names under which web pages may use the server beside IP addresses and the name
    /// listened on. `*`: any.
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

/// Bearer tokens (JSON Web Tokens) of an identity provider.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// Issuer: the required `iss`.
    pub issuer: String,
    /// Audience that their `aud` must have.
    pub audience: String,
    /// URL of the issuer's keys; when absent, the one that `ISSUER/.well-known/openid-configuration` names.
    #[serde(default)]
    pub jwks_url: Option<String>,
    /// The keys are read again after this many seconds, and when a token names an unknown one.
    #[serde(default = "default_refresh_s")]
    pub refresh_s: u64,
    /// Names of the claims.
    #[serde(default)]
    pub claims: ClaimNames,
}

/// The names of the claims that say who asks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClaimNames {
    /// The organisation; `default` when absent.
    pub organisation: String,
    /// The project, which is the tenant; one of the user's own when absent.
    pub project: String,
    /// The user; must be there.
    pub user: String,
    /// The models that the user may use: a list, or a text with blanks between names; all when absent.
    pub models: String,
    /// Limits of the user: an object as in the operator's API.
    pub limits: String,
}

impl Default for ClaimNames {
    fn default() -> Self {
        let [organisation, project, user, models, limits] =
            ["organisation", "project", "sub", "models", "limits"].map(str::to_owned);
        Self { organisation, project, user, models, limits }
    }
}

impl TokenConfig {
    /// Interval of reading keys where nothing is set.
    pub const DEFAULT_REFRESH_S: u64 = 300;
}

fn default_refresh_s() -> u64 {
    TokenConfig::DEFAULT_REFRESH_S
}

/// Bounds on requests.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApiConfig {
    /// Answer 400 to unknown request parameters instead of ignoring them.
    pub strict_parameters: bool,
    /// Answer `GET /tokenizer_info`, which shows the chat template.
    pub tokenizer_info: bool,
    /// Largest request body in bytes.
    pub max_body_bytes: usize,
    /// Most stop strings in one request.
    pub max_stop_strings: usize,
    /// Most alternatives a token's log-probabilities may be asked with.
    pub max_logprobs: u32,
    /// Most choices (prompts × `n`) in one request.
    pub max_choices: usize,
    /// Bodies parsed and tokenized at a time, half of them over 64 KiB; more wait their turn.
    pub max_concurrent_tokenizations: usize,
    /// Most requests that wait for their turn, of bodies up to 64 KiB and over it alike; past it the answer
    /// is 503.
    pub max_queued_tokenizations: usize,
    /// A request that waits longer for its turn is answered with 503.
    pub tokenization_timeout_s: u64,
    /// Largest answer in bytes, but for streams. Requests that ask for more are answered with 400.
    pub max_answer_bytes: usize,
    /// A silent stream sends the comment `: ping` every this many seconds.
    pub ping_interval_s: u64,
    /// Responses are kept for this many seconds where there is a database; 0: until they are deleted.
    pub response_retention_s: u64,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            strict_parameters: false,
            tokenizer_info: false,
            max_body_bytes: 8 << 20,
            max_stop_strings: 4,
            max_logprobs: 20,
            max_choices: 128,
            max_concurrent_tokenizations: 4,
            max_queued_tokenizations: 512,
            tokenization_timeout_s: 30,
            max_answer_bytes: 32 << 20,
            ping_interval_s: 15,
            response_retention_s: 30 * 24 * 60 * 60,
        }
    }
}

/// Settings of logs, metrics and traces.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ObservabilityConfig {
    /// A file that gets a line of JSON for each request; `-` is standard output.
    pub access_log: Option<PathBuf>,
    /// Whether those lines have the beginning of the request's body, and with it what users wrote.
    pub access_log_bodies: bool,
    /// A collector that gets each request as a trace, by OTLP over HTTP: `http://127.0.0.1:4318`.
    pub otlp_endpoint: Option<String>,
    /// A file that gets the load without its text: arrivals, lengths, salted names of prompt blocks, ends.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_rejected_and_secrets_stay_secret() {
        let config: GatewayConfig = serde_json::from_str(r#"{"access": {"api_keys": ["canary-key"]}}"#)
            .expect("a valid configuration");
        assert_eq!(config.access.api_keys[0].reveal(), "canary-key");
        assert!(!format!("{config:?}").contains("canary"));
        assert!(!serde_json::to_string(&config).expect("plain data").contains("canary"));
        assert!(serde_json::from_str::<GatewayConfig>(r#"{"server": {"prot": 1}}"#).is_err());
    }
}
