//! Checks that settings are in their ranges. Flags were checked when they were parsed, so an error found here is in the
//! file. Does not know flags.

use std::fmt::Display;
use std::ops::RangeInclusive;

use throng_gateway::{GatewayConfig, TokenConfig};

use super::{EngineSection, ModelSection, Settings, on_demand};
use crate::args::{check_variables, is_path};
use crate::bounds;
use crate::source::BUILT_IN;
use crate::usage_error::UsageError;

/// Checks every number and name.
///
/// # Errors
/// A message that names the first invalid setting and its range.
pub fn check(settings: &Settings) -> Result<(), UsageError> {
    model(&settings.model)?;
    engine(&settings.engine)?;
    settings.adapters.check()?;
    on_demand::check(&settings.on_demand)?;
    settings.gateway.routing.check().map_err(UsageError)?;
    if let Some(region) = &settings.worker.region {
        bounds::region(region).map_err(|fault| UsageError(format!("worker.region = {region:?}: {fault}")))?;
    }
    gateway(&settings.gateway)
}

/// The issuer of tokens is asked for its keys over encrypted connections, or on this machine.
fn tokens(section: &TokenConfig) -> Result<(), UsageError> {
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
        return Err(UsageError(format!("gateway.access.tokens.{setting} = {url:?}: {expected}")));
    }
    if section.issuer.is_empty() || section.audience.is_empty() {
        return Err(UsageError("gateway.access.tokens: issuer and audience must not be empty".to_owned()));
    }
    chosen("gateway.access.tokens.refresh_s", Some(section.refresh_s), 10..=86_400)
}

fn model(section: &ModelSection) -> Result<(), UsageError> {
    chosen("model.kv_cache_memory_bytes", section.kv_cache_memory_bytes, bounds::KV_CACHE_BYTES)?;
    chosen("model.n_threads", section.n_threads, bounds::THREADS)?;
    let recommended = section.override_generation_config.check();
    recommended.map_err(|fault| UsageError(format!("model.override_generation_config: {fault}")))?;
    check_variables(&section.default_chat_template_kwargs)
        .map_err(|fault| UsageError(format!("model.default_chat_template_kwargs: {fault}")))?;
    let of_calls = section.tool_call_parser.as_deref().map(bounds::tool_call_parser);
    let of_reasoning = section.reasoning_parser.as_deref().map(bounds::reasoning_parser);
    for (setting, read) in [("model.tool_call_parser", of_calls), ("model.reasoning_parser", of_reasoning)] {
        if let Some(Err(fault)) = read {
            return Err(UsageError(format!("{setting} {fault}")));
        }
    }
    for (i, name) in section.served_names.iter().enumerate() {
        if let Err(fault) = bounds::model_name(name) {
            return Err(UsageError(format!("the name {name:?} in model.served_names {fault}")));
        }
        if section.served_names[..i].contains(name) {
            return Err(UsageError(format!("the served name {name:?} is given twice")));
        }
    }
    if section.model.is_none() { names_without_model(&section.served_names) } else { Ok(()) }
}

/// Without a model the starter model is served, but never under another name.
fn names_without_model(names: &[String]) -> Result<(), UsageError> {
    let Some(other) = names.iter().find(|name| *name != BUILT_IN[0].name) else { return Ok(()) };
    Err(UsageError(match names.iter().find(|name| is_path(name)) {
        Some(path) => format!(
            "no model is named: {path:?} is taken for a name, because --served-model-name takes all words after it. \
             The model stands first: throng serve {path} --served-model-name NAME"
        ),
        None => format!(
            "no model is named that could be served as {other:?}: throng serve MODEL --served-model-name {other}. \
             Without a model, {} is served under its own name",
            BUILT_IN[0].name
        ),
    }))
}

fn engine(section: &EngineSection) -> Result<(), UsageError> {
    chosen("engine.max_batch_tokens", section.max_batch_tokens, bounds::STEP_TOKENS)?;
    chosen("engine.max_batch_sequences", section.max_batch_sequences, bounds::STEP_ROWS)?;
    chosen("engine.inter_token_target_ms", section.inter_token_target_ms, bounds::INTER_TOKEN_MS)?;
    chosen("engine.max_queued_requests", section.max_queued_requests, bounds::QUEUED_REQUESTS)?;
    chosen("engine.max_queued_tokens", section.max_queued_tokens, bounds::QUEUED_TOKENS)?;
    chosen("engine.step_timeout_s", section.step_timeout_s, bounds::STEP_TIMEOUT_S)?;
    chosen("engine.queue_timeout_ms", section.queue_timeout_ms, bounds::QUEUE_TIMEOUT_MS)?;
    section.speculation.check().map_err(|fault| UsageError(format!("engine.speculation: {fault}")))
}

fn gateway(config: &GatewayConfig) -> Result<(), UsageError> {
    config.access.tokens.as_ref().map_or(Ok(()), tokens)?;
    let (server, api) = (&config.server, &config.api);
    let connection = bounds::CONNECTION_TIMEOUT_S;
    number("gateway.server.max_connections", server.max_connections, bounds::CONNECTIONS)?;
    number("gateway.server.header_timeout_s", server.header_timeout_s, connection.clone())?;
    number("gateway.server.body_timeout_s", server.body_timeout_s, connection.clone())?;
    number("gateway.server.idle_timeout_s", server.idle_timeout_s, connection.clone())?;
    number("gateway.server.slow_reader_timeout_s", server.slow_reader_timeout_s, connection.clone())?;
    number("gateway.server.shutdown_timeout_s", server.shutdown_timeout_s, bounds::SHUTDOWN_TIMEOUT_S)?;
    let explained = config.observability.max_explained_requests;
    number("gateway.observability.max_explained_requests", explained, bounds::EXPLAINED_REQUESTS)?;
    number("gateway.api.max_body_bytes", api.max_body_bytes, bounds::BODY_BYTES)?;
    number("gateway.api.max_stop_strings", api.max_stop_strings, bounds::STOP_STRINGS)?;
    number("gateway.api.max_choices", api.max_choices, bounds::CHOICES)?;
    number(
        "gateway.api.max_concurrent_tokenizations",
        api.max_concurrent_tokenizations,
        bounds::TOKENIZATIONS,
    )?;
    number("gateway.api.ping_interval_s", api.ping_interval_s, connection)
}

fn chosen<T: PartialOrd + Display>(
    name: &str,
    number_chosen: Option<T>,
    range: RangeInclusive<T>,
) -> Result<(), UsageError> {
    number_chosen.map_or(Ok(()), |chosen| number(name, chosen, range))
}

fn number<T: PartialOrd + Display>(
    name: &str,
    number: T,
    range: RangeInclusive<T>,
) -> Result<(), UsageError> {
    match bounds::fault(&number, &range) {
        Some(fault) => Err(UsageError(format!("{name} = {number}: {fault}"))),
        None => Ok(()),
    }
}
