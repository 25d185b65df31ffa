//! Bytes of a JSON body with its request. Does not parse the JSON itself.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Version, header};
use throng_core::request::TenantId;
use throng_fleet::upstream::named_model;
use throng_http::body::HeldBody;
use throng_http::memory::{MemoryBudget, Part, Reservation};
use throng_http::{Exchange, HALF_SENT_GRACE, Phase};
use tokio::sync::OnceCell;

use crate::app::App;
use crate::caller::Caller;
use crate::config::PARSE_FACTOR;
use crate::idempotency::Repeatable;
use crate::on_demand::Presence;
use crate::rejection::{Rejection, body_not_read, memory_full};
use crate::turns::{MessageTurn, ToolRun, Turn, offered_tools};
use throng_api::responses::{StateParameters, TurnContext};
use throng_api::{ApiError, IgnoredParameters, ReadOptions};
use throng_auth::Tenant;

/// Priority of the lines of batches.
const LEAST_URGENT: i32 = i32::MAX;

/// Body of a request with a JSON content type.
#[derive(Debug)]
pub(super) struct JsonBody {
    /// Bytes of the body.
    body: HeldBody,
    /// Options for parsing the body.
    options: ReadOptions,
    /// The caller of the request.
    pub caller: Arc<Caller>,
    /// The request on its connection.
    pub exchange: Arc<Exchange>,
    /// Key and slot under which the answer is generated only once.
    repeatable: Option<Repeatable>,
    /// Turn of a kept conversation, if the request is one.
    turn: Option<Arc<Turn>>,
    /// Whether the request names servers whose tools the gateway calls.
    names_servers: bool,
    /// Tools that the gateway calls for the request, if its API supports them; listed once, for all models
    /// that are tried.
    tools: Option<Arc<OnceCell<Arc<ToolRun>>>>,
}

/// A received body that was not parsed, with its request.
#[derive(Debug)]
pub(super) struct Received {
    /// Bytes of the body.
    pub body: HeldBody,
    /// The caller of the request.
    pub caller: Arc<Caller>,
    /// The request on its connection.
    pub exchange: Arc<Exchange>,
}

impl JsonBody {
    fn new(body: HeldBody, options: ReadOptions, caller: Arc<Caller>, exchange: Arc<Exchange>) -> Self {
        let (repeatable, turn, names_servers, tools) = (None, None, false, None);
        Self { body, options, caller, exchange, repeatable, turn, names_servers, tools }
    }

    /// Number of bytes.
    pub fn n_bytes(&self) -> usize {
        self.body.bytes.len()
    }

    /// Bytes of the body.
    pub fn bytes(&self) -> &[u8] {
        &self.body.bytes
    }

    /// Whether the request has an idempotency key, so that its answer is kept.
    pub fn is_repeatable(&self) -> bool {
        self.repeatable.is_some()
    }

    /// Takes the idempotency key.
    pub fn take_repeatable(&mut self) -> Option<Repeatable> {
        self.repeatable.take()
    }

    /// Reads the kept conversation that the request continues.
    ///
    /// # Errors
    /// 4xx for objects that are not kept for its tenant, 503 when the store does not answer.
    pub async fn gather_turn(&mut self, app: &App) -> Result<(), ApiError> {
        // A body that cannot be read is refused when it is read as a whole.
        let Some(parameters) = StateParameters::of(&self.body.bytes) else { return Ok(()) };
        self.names_servers = parameters.names_servers;
        self.turn = Turn::of(app, &self.caller, &self.body.bytes, parameters).await?;
        Ok(())
    }

    /// Context of a request for Responses whose tokens are counted: the kept part of its conversation,
    /// and the tools of its servers.
    ///
    /// # Errors
    /// 4xx for tools that may not be used or do not answer.
    pub async fn counted_context(&self, app: &App) -> Result<TurnContext, ApiError> {
        let body = (self.body.bytes.clone(), self.options.clone());
        let turn = self.turn.as_deref();
        match &app.tools {
            Some(toolbox) if self.names_servers => {
                let named = named_model(self.bytes());
                app.check_permission(&self.caller.key_holder(), named.as_deref(), false)?;
                offered_tools(toolbox, turn, body).await
            }
            _ => Ok(turn.map(Turn::context).unwrap_or_default()),
        }
    }

    /// Enables the tools that the gateway calls, if the request names any and the gateway has some.
    pub fn with_tools(self, app: &App) -> Self {
        let has_tools = self.names_servers && app.tools.is_some();
        Self { tools: has_tools.then(Arc::default), ..self }
    }

    /// Lists the tools that the gateway calls for the request to `model`, or to the model that the request
    /// names if that is `None`. `None` without tools.
    ///
    /// # Errors
    /// 4xx for tools that may not be used or do not answer; errors of a request that would be refused anyway.
    pub async fn tools(&self, app: &Arc<App>, model: Option<&str>) -> Result<Option<Arc<ToolRun>>, ApiError> {
        let Some(tools) = &self.tools else { return Ok(None) };
        let (body, turn) = ((self.body.bytes.clone(), self.options.clone()), self.turn.as_deref());
        let begin = async || ToolRun::of(app, &self.caller, (turn, model), body).await.map(Arc::new);
        tools.get_or_try_init(begin).await.cloned().map(Some)
    }

    /// Turn of a kept conversation, if the request is one.
    pub fn turn(&self) -> Option<&Arc<Turn>> {
        self.turn.as_ref()
    }

    /// The body with its request, for handlers that do not parse it.
    pub fn into_received(self) -> Received {
        Received { body: self.body, caller: self.caller, exchange: self.exchange }
    }

    /// Creates the body of a request of the gateway's own, in the name of `tenant` and with these headers.
    ///
    /// # Errors
    /// 503 if memory does not suffice.
    pub fn internal(app: &App, tenant: &str, headers: &HeaderMap, bytes: Bytes) -> Result<Self, ApiError> {
        let memory = app.work.memory.reserve(Part::Bodies, bytes.len()).map_err(memory_full)?;
        let caller = Caller::new(headers, "");
        let exchange = Arc::new(Exchange::new(Version::HTTP_11, None, Arc::default()));
        caller.set_tenant(Tenant::without_key(TenantId(Arc::from(tenant))));
        let (body, options) = (HeldBody { bytes, memory }, read_options(app));
        Ok(Self::new(body, options, Arc::new(caller), exchange))
    }

    /// Creates the body of a line of a batch of `tenant`, with the lowest urgency.
    ///
    /// # Errors
    /// 503 if memory does not suffice.
    pub fn of_batch(app: &App, tenant: Tenant, headers: &HeaderMap, bytes: Bytes) -> Result<Self, ApiError> {
        let memory = app.work.memory.reserve(Part::Bodies, bytes.len()).map_err(memory_full)?;
        let caller = Caller::new(headers, "batch");
        let exchange = Arc::new(Exchange::new(Version::HTTP_11, None, Arc::default()));
        caller.set_tenant(tenant);
        let options = ReadOptions { most_urgent_priority: LEAST_URGENT, ..read_options(app) };
        Ok(Self::new(HeldBody { bytes, memory }, options, Arc::new(caller), exchange))
    }

    /// Creates the body of a WebSocket message, which begins a turn.
    ///
    /// # Errors
    /// 4xx for objects that are not kept for its tenant, 503 when the store does not answer.
    pub async fn of_message(
        app: &App,
        caller: Arc<Caller>,
        body: HeldBody,
        message: MessageTurn,
    ) -> Result<Self, ApiError> {
        caller.received_body(&body.bytes);
        let turn = Turn::of_message(app, &caller, &body.bytes, message).await?;
        let exchange = Arc::new(Exchange::new(Version::HTTP_11, None, Arc::default()));
        let options = read_options(app);
        let names_servers = turn.names_servers();
        Ok(Self { turn: Some(turn), names_servers, ..Self::new(body, options, caller, exchange) })
    }

    /// Copies the bytes into a request in the name of `tenant`, as [`Self::internal`].
    ///
    /// # Errors
    /// Errors of [`Self::internal`].
    pub fn of_nobody(&self, app: &App, tenant: &str, headers: &HeaderMap) -> Result<Self, ApiError> {
        Self::internal(app, tenant, headers, self.body.bytes.clone())
    }

    /// Copies the body with its request.
    ///
    /// # Errors
    /// 503 if memory does not suffice.
    pub fn copy(&self, memory: &Arc<MemoryBudget>) -> Result<Self, ApiError> {
        let memory = memory.reserve(Part::Bodies, self.n_bytes()).map_err(memory_full)?;
        let body = HeldBody { bytes: self.body.bytes.clone(), memory };
        let (caller, exchange) = (self.caller.clone(), self.exchange.clone());
        let (turn, names_servers, tools) = (self.turn.clone(), self.names_servers, self.tools.clone());
        let copy = Self::new(body, self.options.clone(), caller, exchange);
        Ok(Self { turn, names_servers, tools, ..copy })
    }

    /// Loads the model of the request, `target` or the one that the body names, with the errors of
    /// [`App::bring_model`].
    pub async fn bring_model(&self, app: &Arc<App>, target: Option<&str>) -> Result<Presence, ApiError> {
        let named = || target.map(Cow::Borrowed).or_else(|| named_model(self.bytes()));
        app.bring_model(&self.caller.key_holder(), named).await
    }

    /// Loads the model that the body names, or the only one if it names none, with the errors of
    /// [`App::bring_model`].
    pub async fn bring_named_or_only(&self, app: &Arc<App>) -> Result<Presence, ApiError> {
        let key_holder = self.caller.key_holder();
        let only = || app.only_absent_model(&key_holder).map(Cow::Owned);
        app.bring_model(&key_holder, || named_model(self.bytes()).or_else(only)).await
    }

    /// Parses the body with `parse`, and drops the bytes. The returned reservation holds memory for the
    /// parsed request.
    ///
    /// # Errors
    /// Errors of `parse`; 503 without memory.
    pub fn read<T>(
        self,
        parse: impl FnOnce(&[u8], &ReadOptions) -> Result<T, ApiError>,
    ) -> Result<(T, Reservation), ApiError> {
        let HeldBody { bytes, mut memory } = self.body;
        memory.cover(bytes.len().saturating_mul(PARSE_FACTOR)).map_err(memory_full)?;
        Ok((parse(&bytes, &self.options)?, memory))
    }
}

impl FromRequestParts<Arc<App>> for JsonBody {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Rejection> {
        let caller = extension::<Caller>(parts)?;
        let exchange = extension::<Exchange>(parts)?;
        check_encoding(&parts.headers)?;
        if exchange.has_body() {
            check_type(&parts.headers)?;
        }
        let timeout = Duration::from_secs(app.config.server.body_timeout_s);
        let read = exchange.read_body(app.config.api.max_body_bytes, timeout, &app.work.memory, ending(app));
        let body = read.await.map_err(body_not_read)?;
        caller.received_body(&body.bytes);
        let options = read_options(app);
        let repeatable = Repeatable::of(app, &caller, &parts.headers, parts.uri.path(), &body.bytes)?;
        Ok(Self { repeatable, ..Self::new(body, options, caller, exchange) })
    }
}

/// Extension that the server added to every request.
fn extension<T: Send + Sync + 'static>(parts: &Parts) -> Result<Arc<T>, ApiError> {
    parts.extensions.get::<Arc<T>>().cloned().ok_or_else(|| ApiError::internal_error("unknown"))
}

/// Waits until the server ends and a request that is still being received can only be refused.
async fn ending(app: &App) {
    let mut phase = app.lifecycle.phase.subscribe();
    let _ = phase.wait_for(|phase| *phase >= Phase::Draining).await;
    tokio::time::sleep(HALF_SENT_GRACE).await;
}

fn read_options(app: &App) -> ReadOptions {
    let (config, models) = (&app.config, &app.models);
    // Of models that are elsewhere or not loaded yet it is not known; they refuse images by themselves.
    let takes_images = models.absent_models().is_some()
        || !models.upstreams.now().is_empty()
        || models.router.routes().iter().any(|route| route.model.served.images.is_some());
    ReadOptions {
        takes_images,
        image_hosts: app.image_hosts.clone(),
        strict_parameters: config.api.strict_parameters,
        max_stop_strings: config.api.max_stop_strings,
        most_urgent_priority: config.access.most_urgent_priority,
    }
}

/// State of handlers.
pub(super) type AppState = State<Arc<App>>;

fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let is_plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if !headers.get_all(header::CONTENT_ENCODING).iter().all(is_plain) {
        return Err(ApiError::unsupported_encoding());
    }
    Ok(())
}

/// Accepts exactly one type, `application/json` or `application/*+json`, in UTF-8. A web page cannot send
/// these to another origin without a preflight, but can send a body without a type.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut sent = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (sent.next(), sent.next()) else {
        return Err(ApiError::unsupported_media_type());
    };
    let mut parts = value.as_bytes().split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
    let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
    let suffix = media_type.strip_prefix(b"application/").unwrap_or_default();
    let is_json = suffix == b"json" || (suffix.ends_with(b"+json") && suffix.iter().all(is_subtype_byte));
    if is_json && parts.all(is_utf8_or_other) { Ok(()) } else { Err(ApiError::unsupported_media_type()) }
}

fn is_subtype_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+-._".contains(byte)
}

/// Whether a parameter of a media type is none, or not a character set other than UTF-8.
fn is_utf8_or_other(parameter: &[u8]) -> bool {
    let mut sides = parameter.splitn(2, |&byte| byte == b'=');
    if !sides.next().unwrap_or_default().trim_ascii().eq_ignore_ascii_case(b"charset") {
        return true;
    }
    let value = sides.next().unwrap_or_default().trim_ascii();
    let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
    value.eq_ignore_ascii_case(b"utf-8") || value.eq_ignore_ascii_case(b"utf8")
}

/// Adds the header with parameters without effect, and logs them occasionally.
pub(super) fn with_ignored(app: &App, response: impl IntoResponse, ignored: &IgnoredParameters) -> Response {
    let mut response = response.into_response();
    if let Some(value) = ignored.header_value().and_then(|names| HeaderValue::try_from(names).ok()) {
        app.observed.ignored.note(ignored);
        response.headers_mut().insert("x-throng-ignored", value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body of `n_bytes` that has arrived.
    fn body(budget: &Arc<MemoryBudget>, n_bytes: usize) -> JsonBody {
        let caller = Caller::new(&HeaderMap::new(), "");
        let exchange = Arc::new(Exchange::new(Version::HTTP_11, None, Arc::default()));
        let memory = budget.reserve(Part::Bodies, n_bytes).expect("room");
        let body = HeldBody { bytes: vec![b' '; n_bytes].into(), memory };
        JsonBody::new(body, ReadOptions::default(), Arc::new(caller), exchange)
    }

    #[test]
    fn three_of_the_largest_bodies_are_read_at_a_time() {
        let config = crate::config::GatewayConfig::default();
        let budget = MemoryBudget::new(config.memory_limit_bytes());
        let n_bytes = config.api.max_body_bytes;
        let bodies = [(); 3].map(|()| body(&budget, n_bytes));
        let read = bodies.map(|body| body.read(|bytes, _| Ok(bytes.len())).expect("room"));
        assert!(read.iter().all(|(n, memory)| *n == n_bytes && memory.n_bytes() >= PARSE_FACTOR * n_bytes));
        let fourth = body(&budget, 1);
        let fourth =
            JsonBody { body: HeldBody { bytes: vec![b' '; n_bytes].into(), ..fourth.body }, ..fourth };
        assert!(fourth.read(|_, _| Ok(())).is_err_and(|error| error.code() == "overloaded"));
        drop(read);
        assert_eq!(budget.held(Part::Bodies), 0);
    }
}
