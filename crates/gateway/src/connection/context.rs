//! What travels with one request from the socket to its handler: its id, who asks, its unread body. Does not
//! know what the body says.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use axum::extract::MatchedPath;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header};
use hyper::body::Incoming;
use throng_core::limits::Status;
use throng_core::overload::ServiceClass;
use throng_core::request::TenantId;
use throng_http::ConnectionState;
use throng_http::awake::within;
use throng_http::body::{HeldBody, collect, drain};
use throng_http::memory::{MemoryBudget, Part};
use tokio::time::Instant;

use super::destination::Destination;
use crate::aliases::Ticket;
use crate::auth::Tenant;
use crate::observation::{GenerationRecord, Observation, RequestReport, Stage, Stages, TraceParent};
use crate::overload::ServiceAsk;
use crate::rejection::{body_error, head_refused};
use crate::response_cache::CachePolicy;
use crate::retry_after::retry_after_s;
use throng_api::ApiError;

/// Longest `X-Request-Id` taken over from a client.
const MAX_REQUEST_ID_BYTES: usize = 128;
/// How much of a body is kept for the access log, where that is asked for.
const MAX_KEPT_BODY_BYTES: usize = 2000;

/// What is known of one request beside its head.
#[derive(Debug)]
pub(crate) struct RequestContext {
    /// The client's `X-Request-Id` when it is usable, else a new one.
    pub id: HeaderValue,
    /// When the head had arrived.
    pub arrived: Instant,
    service: ServiceAsk,
    service_tier: OnceLock<ServiceClass>,
    /// Whether its answer may be one that was generated before.
    pub cache_policy: CachePolicy,
    /// Where its client wants it to go.
    pub destination: Destination,
    connection: Arc<ConnectionState>,
    number: usize,
    body: Mutex<Option<Incoming>>,
    body_broken: AtomicBool,
    tenant: OnceLock<Tenant>,
    limits: OnceLock<Status>,
    user: OnceLock<String>,
    version: Version,
    has_body: bool,
    /// Who is told of it when it is over; nobody of what is no request of a client's.
    observation: Option<Arc<Observation>>,
    trace_parent: Option<TraceParent>,
    /// When it had passed the stages before its generation.
    pub stages: Stages,
    /// The beginning of its body, where it is kept for those who are told of finished requests.
    kept_body: OnceLock<String>,
    generation: Mutex<Option<GenerationRecord>>,
    answer: OnceLock<Answered>,
    /// Another model may answer it before its first token.
    is_replaceable: AtomicBool,
    /// The roll-out that is told how it ended.
    judged: Mutex<Option<Ticket>>,
}

/// Which route answered a request, and how.
#[derive(Debug)]
struct Answered {
    method: Method,
    route: Option<MatchedPath>,
    status: StatusCode,
    error_code: Option<&'static str>,
}

impl RequestContext {
    /// Begins a request of `connection`, which has counted it already.
    pub fn new(
        headers: &HeaderMap,
        version: Version,
        body: Option<Incoming>,
        connection: Arc<ConnectionState>,
    ) -> Self {
        let destination = Destination::of(headers);
        let has_body = body.as_ref().is_some_and(|body| !hyper::body::Body::is_end_stream(body));
        Self {
            id: request_id(headers),
            arrived: Instant::now(),
            service: ServiceAsk::of(headers),
            service_tier: OnceLock::new(),
            cache_policy: destination.cache_policy(headers),
            destination,
            number: connection.n_started(),
            connection,
            body: Mutex::new(body),
            body_broken: AtomicBool::new(false),
            tenant: OnceLock::new(),
            limits: OnceLock::new(),
            user: OnceLock::new(),
            version,
            has_body,
            observation: Some(Arc::default()),
            trace_parent: TraceParent::of(headers),
            stages: Stages::default(),
            kept_body: OnceLock::new(),
            generation: Mutex::new(None),
            answer: OnceLock::new(),
            is_replaceable: AtomicBool::new(false),
            judged: Mutex::default(),
        }
    }

    /// The same request, of which these are told when it is over.
    pub fn observed_by(mut self, observation: &Arc<Observation>) -> Self {
        self.observation = Some(observation.clone());
        self
    }

    /// What the server does of its own for this request, in the name of `tenant`: nobody is told of it as of a request.
    pub fn aside(&self, tenant: Tenant) -> Self {
        let headers = HeaderMap::new();
        let mut aside = Self::new(&headers, self.version, None, self.connection.clone());
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

    /// Who asks, for fairness; the anonymous tenant until a key has been checked.
    pub fn tenant(&self) -> TenantId {
        self.tenant.get().map_or_else(TenantId::anonymous, |tenant| tenant.id.clone())
    }

    /// Who asks, with what the key permits; the anonymous tenant until a key has been checked.
    pub fn key_holder(&self) -> Tenant {
        self.tenant.get().cloned().unwrap_or_else(Tenant::anonymous)
    }

    /// Says who asks; the first word counts. The user that a token names is the request's.
    pub fn set_tenant(&self, tenant: Tenant) {
        self.set_user(tenant.user.as_deref());
        let _ = self.tenant.set(tenant);
    }

    /// Says what is left of the key's limits; the first word counts.
    pub fn set_limits(&self, status: Status) {
        let _ = self.limits.set(status);
    }

    /// Says how urgent the body says that it is; the first word counts.
    pub fn set_service_tier(&self, class: Option<ServiceClass>) {
        let _ = class.map(|class| self.service_tier.set(class));
    }

    /// How urgent it is: its header goes before its body.
    pub fn service(&self) -> ServiceAsk {
        self.service.or_class(self.service_tier.get().copied())
    }

    /// Says which user the request names; the first word counts.
    pub fn set_user(&self, user: Option<&str>) {
        let _ = user.map(|user| self.user.set(user.to_owned()));
    }

    /// The user that the request names.
    pub fn user(&self) -> Option<&str> {
        self.user.get().map(String::as_str)
    }

    /// What is left of the key's limits, for the response's headers.
    pub fn limits(&self) -> Option<&Status> {
        self.limits.get()
    }

    /// Notes what a model did for the request; the first word counts.
    pub fn record_generation(&self, generation: GenerationRecord) {
        let mut recorded = self.generation.lock().unwrap_or_else(PoisonError::into_inner);
        recorded.get_or_insert(generation);
    }

    /// Says whether another model may answer it before its first token.
    pub fn set_replaceable(&self, is_replaceable: bool) {
        self.is_replaceable.store(is_replaceable, Ordering::Relaxed);
    }

    /// Whether another model may answer it before its first token.
    pub fn is_replaceable(&self) -> bool {
        self.is_replaceable.load(Ordering::Relaxed)
    }

    /// A roll-out is told how it ends.
    pub fn judge(&self, ticket: Ticket) {
        *self.judged.lock().unwrap_or_else(PoisonError::into_inner) = Some(ticket);
    }

    /// The model that was to answer could not, and another one does it: what is known of the attempt is forgotten. A roll-out is told only
    /// where the model has failed.
    pub fn begin_again(&self, has_failed: bool) {
        self.generation.lock().unwrap_or_else(PoisonError::into_inner).take();
        let judged = self.judged.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ticket) = judged.filter(|_| has_failed) {
            ticket.failed();
        }
    }

    /// Notes which route answered, and how; the first word counts.
    pub fn record_answer(
        &self,
        method: Method,
        route: Option<MatchedPath>,
        status: StatusCode,
        error_code: Option<&'static str>,
    ) {
        let _ = self.answer.set(Answered { method, route, status, error_code });
    }

    /// What to answer when the request's framing was refused on the way in.
    pub fn refused(&self) -> Option<ApiError> {
        if self.version >= Version::HTTP_2 {
            return None;
        }
        self.connection.refusal(self.number).map(head_refused)
    }

    /// Whether a body was sent, be it read or not.
    pub fn has_body(&self) -> bool {
        self.has_body
    }

    /// Asks that the connection closes after this request's response.
    pub fn close_connection(&self) {
        self.connection.close_when_done();
    }

    /// Asks that the answer is not lost to a reset when the connection closes.
    pub fn linger(&self) {
        if self.version < Version::HTTP_2 {
            self.connection.set_linger();
        }
    }

    /// Waits until the client has said that it will send no more on its connection.
    pub async fn input_ended(&self) {
        self.connection.input_ended().await;
    }

    /// Reads the whole body, at most `max_bytes` within `timeout` and before the server is `ending`. What has
    /// arrived is reserved in
    /// `memory`.
    ///
    /// # Errors
    /// 413, 408, 503 when there is no memory for it or the server ends, or 400 when the client stops early.
    /// The connection is closed after each.
    pub async fn read_body(
        &self,
        max_bytes: usize,
        timeout: Duration,
        memory: &Arc<MemoryBudget>,
        ending: impl Future<Output = ()>,
    ) -> Result<HeldBody, ApiError> {
        let mut held = HeldBody { bytes: Bytes::new(), memory: memory.reservation(Part::Bodies) };
        let Some(mut body) = self.take_body() else { return Ok(held) };
        self.connection.set_reading_body(true);
        let result = tokio::select! {
            biased;
            read = within(timeout, collect(&mut body, max_bytes, &mut held.memory)) => {
                read.map_or_else(|_| Err(ApiError::request_timeout()), |read| read.map_err(body_error))
            }
            () = ending => Err(ApiError::shutting_down(retry_after_s())),
        };
        self.connection.set_reading_body(false);
        let result = result.map_err(|error| self.refused().unwrap_or(error));
        if result.is_err() {
            self.body_broken.store(true, Ordering::Release);
        }
        held.bytes = result?;
        self.pass(Stage::Body);
        if self.observation.as_ref().is_some_and(|observation| observation.keeps_bodies) {
            let beginning = &held.bytes[..held.bytes.len().min(MAX_KEPT_BODY_BYTES)];
            let _ = self.kept_body.set(String::from_utf8_lossy(beginning).into_owned());
        }
        Ok(held)
    }

    /// Brings the connection into a clear state before the response: the body read to its end, or the connection
    /// about to close, which the return value tells.
    pub async fn settle_body(&self) -> Settled {
        let unread = self.take_body();
        let broken = self.body_broken.load(Ordering::Acquire);
        let drained = match unread {
            None => true,
            Some(body) => drain(body).await,
        };
        if (drained && !broken) || self.version >= Version::HTTP_2 {
            return Settled::Reusable;
        }
        self.linger();
        Settled::Closing
    }

    /// The body, for those who read it while they answer; `None` once it has been taken. Bounds are theirs.
    pub fn stream_body(&self) -> Option<Incoming> {
        self.take_body()
    }

    /// What is known of it when it is over.
    fn report(&mut self) -> RequestReport {
        let total = self.arrived.elapsed();
        let answer = self.answer.take();
        let tenant = self.tenant.take();
        let generation = self.generation.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        RequestReport {
            request_id: self.id_text().to_owned(),
            trace_parent: self.trace_parent,
            client: self.connection.client().to_owned(),
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
            stages: std::mem::take(&mut self.stages),
        }
    }

    fn take_body(&self) -> Option<Incoming> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for RequestContext {
    /// The request is over once neither its response nor its generation needs the context.
    fn drop(&mut self) {
        let Some(observation) = self.observation.take() else { return };
        let report = self.report();
        if let Some(ticket) = self.judged.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            ticket.over(&report);
        }
        observation.finished(report);
    }
}

/// What becomes of a connection after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// The next request can follow.
    Reusable,
    /// It closes; the response says so.
    Closing,
}

/// The client's id if it is printable ASCII of a sane length and stands there once; else a new one.
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

/// The body's announced length, if it is announced.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
