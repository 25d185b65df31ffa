//! The caller of one request: its id, tenant, destination and outcome. Does not know connections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use axum::extract::MatchedPath;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use throng_core::fleet::limits::Status;
use throng_core::fleet::overload::ServiceClass;
use throng_core::request::TenantId;
use tokio::time::Instant;

use super::destination::Destination;
use crate::aliases::Ticket;
use throng_api::ServiceHeaders;
use throng_auth::Tenant;
use throng_cache::CachePolicy;
use throng_metering::observation::{
    GenerationRecord, Observation, RequestReport, Stage, Stages, ToolReport, TraceParent,
};

/// Longest `X-Request-Id` that is accepted from a client, in bytes.
const MAX_REQUEST_ID_BYTES: usize = 128;
/// Maximum number of tool calls recorded for a request.
const MAX_TOOL_RECORDS: usize = 64;
/// Maximum bytes of a body that are kept for the access log, if it is configured to have bodies.
const MAX_KEPT_BODY_BYTES: usize = 2000;

/// The caller of one request. Dropped at the end of the request, when neither the response nor the
/// generation needs it.
#[derive(Debug)]
pub(crate) struct Caller {
    /// The client's `X-Request-Id` if it is valid, else a new one.
    pub id: HeaderValue,
    /// Time at which the head had been received.
    pub arrived: Instant,
    service: ServiceHeaders,
    service_tier: OnceLock<ServiceClass>,
    /// Whether kept answers may be used.
    pub cache_policy: CachePolicy,
    /// Destination that the client names.
    pub destination: Destination,
    /// Address of the client.
    client: String,
    tenant: OnceLock<Tenant>,
    limits: OnceLock<Status>,
    user: OnceLock<String>,
    /// Observers of the request's end; `None` for internal requests.
    observation: Option<Arc<Observation>>,
    trace_parent: Option<TraceParent>,
    /// Times of the stages before its generation.
    pub stages: Stages,
    /// Beginning of the body, if observers need it.
    kept_body: OnceLock<String>,
    generation: Mutex<Option<GenerationRecord>>,
    tools: Mutex<Vec<ToolReport>>,
    answer: OnceLock<Answered>,
    /// Whether another model may answer it before its first token.
    is_replaceable: AtomicBool,
    /// Ticket that reports the outcome to the roll-out.
    judged: Mutex<Option<Ticket>>,
}

/// Route that answered a request, and its answer.
#[derive(Debug)]
struct Answered {
    method: Method,
    route: Option<MatchedPath>,
    status: StatusCode,
    error_code: Option<&'static str>,
}

impl Caller {
    /// Creates the caller of a request with these headers from the address `client`.
    pub fn new(headers: &HeaderMap, client: &str) -> Self {
        let destination = Destination::of(headers);
        Self {
            id: request_id(headers),
            arrived: Instant::now(),
            service: ServiceHeaders::of(headers),
            service_tier: OnceLock::new(),
            cache_policy: destination.cache_policy(headers),
            destination,
            client: client.to_owned(),
            tenant: OnceLock::new(),
            limits: OnceLock::new(),
            user: OnceLock::new(),
            observation: Some(Arc::default()),
            trace_parent: TraceParent::of(headers),
            stages: Stages::default(),
            kept_body: OnceLock::new(),
            generation: Mutex::new(None),
            tools: Mutex::default(),
            answer: OnceLock::new(),
            is_replaceable: AtomicBool::new(false),
            judged: Mutex::default(),
        }
    }

    /// Adds the observers that are notified of the request's end.
    pub fn observed_by(mut self, observation: &Arc<Observation>) -> Self {
        self.observation = Some(observation.clone());
        self
    }

    /// Creates the caller of a later request on the same connection, with these headers.
    pub fn of_message(&self, headers: &HeaderMap) -> Self {
        let mut caller = Self::new(headers, &self.client);
        caller.observation.clone_from(&self.observation);
        caller
    }

    /// Creates a request of the server's own for this one, in the name of `tenant`. It is not observed.
    pub fn internal_request(&self, tenant: Tenant) -> Self {
        let mut aside = Self::new(&HeaderMap::new(), &self.client);
        (aside.id, aside.arrived, aside.observation) = (self.id.clone(), self.arrived, None);
        aside.set_tenant(tenant);
        aside.set_user(self.user());
        aside
    }

    /// Notes that the request has passed a stage.
    pub fn pass(&self, stage: Stage) {
        self.stages.note(stage, self.arrived.elapsed());
    }

    /// The request's id as text.
    pub fn id_text(&self) -> &str {
        self.id.to_str().unwrap_or("?")
    }

    /// Tenant, for fairness; the anonymous one until a key has been checked.
    pub fn tenant(&self) -> TenantId {
        self.tenant.get().map_or_else(TenantId::anonymous, |tenant| tenant.id.clone())
    }

    /// Tenant with the permissions of its key; the anonymous one until a key has been checked.
    pub fn key_holder(&self) -> Tenant {
        self.tenant.get().cloned().unwrap_or_else(Tenant::anonymous)
    }

    /// Sets the tenant; later calls have no effect. The user that a token names becomes the request's.
    pub fn set_tenant(&self, tenant: Tenant) {
        self.set_user(tenant.user.as_deref());
        let _ = self.tenant.set(tenant);
    }

    /// Sets the remaining limits of the key; later calls have no effect.
    pub fn set_limits(&self, status: Status) {
        let _ = self.limits.set(status);
    }

    /// Sets the class of service that the body names; later calls have no effect.
    pub fn set_service_tier(&self, class: Option<ServiceClass>) {
        let _ = class.map(|class| self.service_tier.set(class));
    }

    /// Class and deadline of the request: its header has precedence over its body.
    pub fn service(&self) -> ServiceHeaders {
        self.service.or_class(self.service_tier.get().copied())
    }

    /// Sets the user that the request names; later calls have no effect.
    pub fn set_user(&self, user: Option<&str>) {
        let _ = user.map(|user| self.user.set(user.to_owned()));
    }

    /// The user that the request names.
    pub fn user(&self) -> Option<&str> {
        self.user.get().map(String::as_str)
    }

    /// Remaining limits of the key, for the response's headers.
    pub fn limits(&self) -> Option<&Status> {
        self.limits.get()
    }

    /// Adds a record of a generation for the request; records of several turns are added up.
    pub fn record_generation(&self, generation: GenerationRecord) {
        match &mut *self.generation.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(before) => before.go_on(generation),
            none => *none = Some(generation),
        }
    }

    /// Whether a generation for the request has ended.
    pub fn has_generated(&self) -> bool {
        self.generation.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Notes a call of a tool.
    pub fn record_tool(&self, call: ToolReport) {
        let mut calls = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.len() < MAX_TOOL_RECORDS {
            calls.push(call);
        }
    }

    /// Sets whether another model may answer it before its first token.
    pub fn set_replaceable(&self, is_replaceable: bool) {
        self.is_replaceable.store(is_replaceable, Ordering::Relaxed);
    }

    /// Whether another model may answer it before its first token.
    pub fn is_replaceable(&self) -> bool {
        self.is_replaceable.load(Ordering::Relaxed)
    }

    /// Sets the ticket that reports the outcome to a roll-out.
    pub fn judge(&self, ticket: Ticket) {
        *self.judged.lock().unwrap_or_else(PoisonError::into_inner) = Some(ticket);
    }

    /// Resets the records for an attempt with another model. The attempt is reported to a roll-out only if
    /// its model has failed.
    pub fn begin_again(&self, has_failed: bool) {
        self.generation.lock().unwrap_or_else(PoisonError::into_inner).take();
        let judged = self.judged.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ticket) = judged.filter(|_| has_failed) {
            ticket.failed();
        }
    }

    /// Notes the route that answered and the answer; later calls have no effect.
    pub fn record_answer(
        &self,
        method: Method,
        route: Option<MatchedPath>,
        status: StatusCode,
        error_code: Option<&'static str>,
    ) {
        let _ = self.answer.set(Answered { method, route, status, error_code });
    }

    /// Notes that the body was received; its beginning is kept if observers need it.
    pub fn received_body(&self, bytes: &[u8]) {
        self.pass(Stage::Body);
        if self.observation.as_ref().is_some_and(|observation| observation.keeps_bodies) {
            let beginning = &bytes[..bytes.len().min(MAX_KEPT_BODY_BYTES)];
            let _ = self.kept_body.set(String::from_utf8_lossy(beginning).into_owned());
        }
    }

    /// Report of the ended request.
    fn report(&mut self) -> RequestReport {
        let total = self.arrived.elapsed();
        let answer = self.answer.take();
        let tenant = self.tenant.take();
        let generation = self.generation.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        RequestReport {
            request_id: self.id_text().to_owned(),
            trace_parent: self.trace_parent,
            client: std::mem::take(&mut self.client),
            method: answer.as_ref().map(|answer| answer.method.clone()).unwrap_or_default(),
            route: answer.as_ref().and_then(|answer| Some(answer.route.as_ref()?.as_str().to_owned())),
            status: answer.as_ref().map(|answer| answer.status.as_u16()),
            error_code: answer.as_ref().and_then(|answer| answer.error_code),
            key: tenant.as_ref().and_then(|tenant| Some(tenant.key.as_deref()?.prefix.clone())),
            tenant: tenant.map(|tenant| tenant.id.0.to_string()),
            arrived: SystemTime::now().checked_sub(total).unwrap_or(SystemTime::UNIX_EPOCH),
            total,
            limits: self.limits.take(),
            body: self.kept_body.take(),
            generation: generation.map(GenerationRecord::report),
            tools: std::mem::take(self.tools.get_mut().unwrap_or_else(PoisonError::into_inner)),
            stages: std::mem::take(&mut self.stages),
        }
    }
}

impl Drop for Caller {
    /// Reports the end of the request, as soon as neither its response nor its generation needs it.
    fn drop(&mut self) {
        let Some(observation) = self.observation.take() else { return };
        let report = self.report();
        if let Some(ticket) = self.judged.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            ticket.over(&report);
        }
        observation.finished(report);
    }
}

/// The client's id if the header occurs once and is short printable ASCII; else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let mut sent = headers.get_all("x-request-id").iter();
    if let (Some(id), None) = (sent.next(), sent.next())
        && (1..=MAX_REQUEST_ID_BYTES).contains(&id.len())
        && id.as_bytes().iter().all(u8::is_ascii_graphic)
    {
        return id.clone();
    }
    let id = format!("req_{}", uuid::Uuid::new_v4().simple());
    HeaderValue::try_from(id).expect("hexadecimal digits are a header value")
}

/// Value of `Content-Length`, if there is one.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
