//! Checks that settings are in their ranges. Flags were checked when they were parsed, so an error found here
//! is in the file. Does not know flags.

use std::fmt::Display;
use std::ops::RangeInclusive;

use throng_gateway::{GatewayConfig, TokenConfig};
use throng_tools::{LimitsConfig, ToolsConfig};

use super::{EngineSection, ModelSection, Settings, on_demand};
use crate::args::{RankCount, check_variables, is_path};
use crate::bounds;
use crate::source::BUILT_IN;

/// Mistakes in settings.
#[derive(Debug, Default)]
pub struct Faults(pub Vec<String>);

impl Faults {
    fn add(&mut self, checked: Result<(), impl Into<String>>) {
        self.0.extend(checked.err().map(Into::into));
    }

    fn chosen<T: PartialOrd + Display>(&mut self, name: &str, chosen: Option<T>, range: RangeInclusive<T>) {
        if let Some(chosen) = chosen {
            self.number(name, chosen, range);
        }
    }

    fn number<T: PartialOrd + Display>(&mut self, name: &str, number: T, range: RangeInclusive<T>) {
        self.0.extend(bounds::fault(&number, &range).map(|fault| format!("{name} = {number}: {fault}")));
    }
}

/// Checks every number and name. Each fault begins with the setting's path or names a conflict of settings.
pub fn check(settings: &Settings) -> Faults {
    let mut faults = Faults::default();
    model(&settings.model, &mut faults);
    engine(&settings.engine, &mut faults);
    faults.add(settings.adapters.check());
    faults.add(on_demand::check(&settings.on_demand));
    faults.add(settings.gateway.routing.check());
    if let Some(region) = &settings.worker.region {
        let checked = bounds::region(region).map(drop);
        faults.add(checked.map_err(|fault| format!("worker.region = {region:?}: {fault}")));
    }
    gateway(&settings.gateway, &mut faults);
    faults
}

/// Requires encryption for the connection to the token issuer, except on this machine.
fn tokens(section: &TokenConfig, faults: &mut Faults) {
    let is_local = |rest: &str| {
        ["127.0.0.1", "localhost", "[::1]"].iter().any(|host| {
            rest.strip_prefix(host).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
        })
    };
    let is_safe = |url: &str| {
        url.strip_prefix("https://").is_some_and(|rest| !rest.is_empty())
            || url.strip_prefix("http://").is_some_and(is_local)
    };
    let (setting, url) = match &section.jwks_url {
        Some(url) => ("jwks_url", url),
        None => ("issuer", &section.issuer),
    };
    if !is_safe(url) {
        let expected =
            "must be an https:// URL, or an http:// one of this machine, to read the issuer's keys from";
        faults.0.push(format!("gateway.access.tokens.{setting} = {url:?}: {expected}"));
    }
    if section.issuer.is_empty() || section.audience.is_empty() {
        faults.0.push("gateway.access.tokens: issuer and audience must not be empty".to_owned());
    }
    faults.number("gateway.access.tokens.refresh_s", section.refresh_s, 10..=86_400);
}

fn model(section: &ModelSection, faults: &mut Faults) {
    faults.chosen("model.kv_cache_memory_bytes", section.kv_cache_memory_bytes, bounds::KV_CACHE_BYTES);
    faults.chosen("model.kv_offload_bytes", section.kv_offload_bytes, bounds::KV_CACHE_BYTES);
    faults.chosen("model.n_threads", section.n_threads, bounds::THREADS);
    faults.chosen("model.pipeline_parallel_size", section.pipeline_parallel_size, bounds::RANKS);
    if let Some(RankCount::Ranks(n_ranks)) = section.tensor_parallel_size {
        let n_stages = section.pipeline_parallel_size.unwrap_or(1);
        faults.number("processes of the model", n_ranks.saturating_mul(n_stages), bounds::RANKS);
    }
    let recommended = section.override_generation_config.check();
    faults.add(recommended.map_err(|fault| format!("model.override_generation_config: {fault}")));
    let variables = check_variables(&section.default_chat_template_kwargs);
    faults.add(variables.map_err(|fault| format!("model.default_chat_template_kwargs: {fault}")));
    let of_calls = section.tool_call_parser.as_deref().map(bounds::tool_call_parser);
    let of_reasoning = section.reasoning_parser.as_deref().map(bounds::reasoning_parser);
    for (setting, read) in [("model.tool_call_parser", of_calls), ("model.reasoning_parser", of_reasoning)] {
        if let Some(Err(fault)) = read {
            faults.0.push(format!("{setting} {fault}"));
        }
    }
    for (i, name) in section.served_names.iter().enumerate() {
        if let Err(fault) = bounds::model_name(name) {
            faults.0.push(format!("the name {name:?} in model.served_names {fault}"));
        }
        if section.served_names[..i].contains(name) {
            faults.0.push(format!("the served name {name:?} is given twice"));
        }
    }
    if section.model.is_none() {
        faults.add(names_without_model(&section.served_names));
    }
}

/// Refuses other names for the starter model.
fn names_without_model(names: &[String]) -> Result<(), String> {
    let Some(other) = names.iter().find(|name| *name != BUILT_IN[0].name) else { return Ok(()) };
    Err(match names.iter().find(|name| is_path(name)) {
        Some(path) => format!(
            "no model is named: {path:?} is taken for a name, because --served-model-name takes all words after it. \
             The model stands first: throng serve {path} --served-model-name NAME"
        ),
        None => format!(
            "no model is named that could be served as {other:?}: throng serve MODEL --served-model-name {other}. \
             Without a model, {} is served under its own name",
            BUILT_IN[0].name
        ),
    })
}

fn engine(section: &EngineSection, faults: &mut Faults) {
    faults.chosen("engine.max_batch_tokens", section.max_batch_tokens, bounds::STEP_TOKENS);
    faults.chosen("engine.max_batch_sequences", section.max_batch_sequences, bounds::STEP_ROWS);
    faults.chosen("engine.inter_token_target_ms", section.inter_token_target_ms, bounds::INTER_TOKEN_MS);
    faults.chosen("engine.marked_cache_percent", section.marked_cache_percent, 0..=100);
    faults.chosen("engine.max_queued_requests", section.max_queued_requests, bounds::QUEUED_REQUESTS);
    faults.chosen("engine.max_queued_tokens", section.max_queued_tokens, bounds::QUEUED_TOKENS);
    faults.chosen("engine.step_timeout_s", section.step_timeout_s, bounds::STEP_TIMEOUT_S);
    faults.chosen("engine.queue_timeout_ms", section.queue_timeout_ms, bounds::QUEUE_TIMEOUT_MS);
    faults.add(section.speculation.check().map_err(|fault| format!("engine.speculation: {fault}")));
}

fn gateway(config: &GatewayConfig, faults: &mut Faults) {
    if let Some(section) = &config.access.tokens {
        tokens(section, faults);
    }
    let (server, api) = (&config.server, &config.api);
    let connection = bounds::CONNECTION_TIMEOUT_S;
    faults.number("gateway.server.max_connections", server.max_connections, bounds::CONNECTIONS);
    faults.number("gateway.server.header_timeout_s", server.header_timeout_s, connection.clone());
    faults.number("gateway.server.body_timeout_s", server.body_timeout_s, connection.clone());
    faults.number("gateway.server.idle_timeout_s", server.idle_timeout_s, connection.clone());
    faults.number("gateway.server.slow_reader_timeout_s", server.slow_reader_timeout_s, connection.clone());
    let (idle, age) = (server.websocket_idle_timeout_s, server.websocket_max_age_s);
    faults.number("gateway.server.websocket_idle_timeout_s", idle, bounds::WEBSOCKET_S);
    faults.number("gateway.server.websocket_max_age_s", age, bounds::WEBSOCKET_S);
    faults.number("gateway.server.shutdown_timeout_s", server.shutdown_timeout_s, bounds::SHUTDOWN_TIMEOUT_S);
    let state = &config.state;
    faults.number("gateway.state.retention_days", state.retention_days, bounds::RETENTION_DAYS);
    for (name, days) in &state.retention {
        faults.number(&format!("gateway.state.retention.{name}"), *days, bounds::RETENTION_DAYS);
    }
    faults.number("gateway.state.max_objects", state.max_objects, bounds::STATE_OBJECTS);
    faults.number("gateway.state.max_bytes", state.max_bytes, bounds::STATE_BYTES);
    faults.number("gateway.state.max_file_bytes", state.max_file_bytes, bounds::STATE_BYTES);
    faults.number("gateway.state.max_batches", state.max_batches, bounds::BATCHES);
    faults.number("gateway.state.max_batch_lines", state.max_batch_lines, bounds::BATCH_LINES);
    let explained = config.observability.max_explained_requests;
    faults.number("gateway.observability.max_explained_requests", explained, bounds::EXPLAINED_REQUESTS);
    faults.number("gateway.api.max_body_bytes", api.max_body_bytes, bounds::BODY_BYTES);
    faults.number("gateway.api.max_stop_strings", api.max_stop_strings, bounds::STOP_STRINGS);
    let hosts = api.image_hosts().map(drop);
    faults.add(hosts.map_err(|fault| format!("gateway.api.allowed_media_domains: {fault}")));
    faults.number("gateway.api.max_choices", api.max_choices, bounds::CHOICES);
    faults.number(
        "gateway.api.max_concurrent_tokenizations",
        api.max_concurrent_tokenizations,
        bounds::TOKENIZATIONS,
    );
    faults.number("gateway.api.ping_interval_s", api.ping_interval_s, connection);
    tools(&config.tools, faults);
}

fn tools(config: &ToolsConfig, faults: &mut Faults) {
    faults.number("gateway.tools.max_calls", config.max_calls, bounds::TOOL_CALLS);
    faults.number("gateway.tools.max_turns", config.max_turns, bounds::TOOL_CALLS);
    tool_limits("gateway.tools.hosted_limits", &config.hosted_limits, faults);
    for server in &config.server {
        tool_limits(&format!("gateway.tools.server '{}': limits", server.name), &server.limits, faults);
    }
    for tool in &config.http {
        tool_limits(&format!("gateway.tools.http '{}': limits", tool.name), &tool.limits, faults);
    }
}

fn tool_limits(place: &str, limits: &LimitsConfig, faults: &mut Faults) {
    let LimitsConfig { concurrency, queue, timeout_s, max_result_bytes, breaker_failures, breaker_s } =
        *limits;
    let name = |key: &str| format!("{place}.{key}");
    faults.number(&name("concurrency"), concurrency, bounds::TOOL_CALLS);
    faults.number(&name("queue"), queue, bounds::TOOL_QUEUE);
    faults.number(&name("timeout_s"), timeout_s, bounds::TOOL_S);
    faults.number(&name("max_result_bytes"), max_result_bytes, bounds::TOOL_RESULT_BYTES);
    faults.number(&name("breaker_failures"), breaker_failures, bounds::TOOL_CALLS);
    faults.number(&name("breaker_s"), breaker_s, bounds::TOOL_S);
}
