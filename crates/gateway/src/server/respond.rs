//! One request from its head to its response: guard, route, and the headers of every response. A panic
//! becomes an answer too. Does not know the handlers' work.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::MatchedPath;
use axum::response::{IntoResponse, Redirect};
use futures_util::FutureExt;
use http::request::Parts;
use http::{HeaderValue, Request, Response, Version, header};
use hyper::body::Incoming;
use throng_http::{Exchange, InFlight, Phase, Respond, ResponseBody, Settled};
use tower::{Layer, ServiceExt};
use tower_http::cors::CorsLayer;

use super::Service;
use super::guard::root_path::{self, Rooted};
use super::guard::{Guard, Source};
use super::refusals::{RefusalLog, Sender};
use crate::caller::Caller;
use crate::limits::insert_headers;
use crate::rejection::{head_refused, reject, write_error};
use crate::routes::dialect_of;
use throng_api::ApiError;
use throng_metering::metrics::HttpLabels;

/// Answers requests of one listening socket.
#[derive(Debug)]
pub(super) struct Responder {
    service: Arc<Service>,
    guard: Guard,
    cors: CorsLayer,
    refusals: RefusalLog,
}

impl Responder {
    pub fn new(service: Arc<Service>, guard: Guard, cors: CorsLayer) -> Self {
        Self { service, guard, cors, refusals: RefusalLog::default() }
    }

    async fn route(
        &self,
        mut parts: Parts,
        caller: &Arc<Caller>,
        exchange: &Arc<Exchange>,
        source: Source,
    ) -> Response<Body> {
        let root = &self.service.config.server.root_path;
        match root_path::strip(std::mem::take(&mut parts.uri), root) {
            Rooted::Route(uri) => parts.uri = (self.service.served.borrow().tidy)(uri),
            Rooted::Redirect(to) => return Redirect::permanent(&to).into_response(),
        }
        let mut request = Request::from_parts(parts, Body::empty());
        request.extensions_mut().insert(caller.clone());
        request.extensions_mut().insert(exchange.clone());
        let router = self.service.served.borrow().router.clone();
        let answered = match source {
            Source::Own => AssertUnwindSafe(router.oneshot(request)).catch_unwind().await,
            Source::AllowedOrigin => {
                AssertUnwindSafe(self.cors.layer(router).oneshot(request)).catch_unwind().await
            }
        };
        let Ok(answered) = answered else {
            tracing::error!(request = caller.id_text(), "a handler panicked");
            return reject(ApiError::internal_error(caller.id_text()));
        };
        let Ok(response) = answered;
        response
    }

    /// Adds to a refusal the headers that let the page read it.
    async fn for_page(&self, parts: Parts, refusal: Response<Body>) -> Response<Body> {
        let mut refusal = Some(refusal);
        let refuse = move |_| std::future::ready(Ok(refusal.take().unwrap_or_default()));
        let answered: Result<_, Infallible> = self
            .cors
            .layer(tower::service_fn(refuse))
            .oneshot(Request::from_parts(parts, Body::empty()))
            .await;
        let Ok(response) = answered;
        response
    }
}

impl Respond for Responder {
    type Body = Body;
    type Guard = Observed;

    async fn respond(
        &self,
        request: Request<Incoming>,
        in_flight: InFlight,
    ) -> Response<ResponseBody<Body, Observed>> {
        let connection = in_flight.state.clone();
        let (parts, body) = request.into_parts();
        let version = parts.version;
        let (method, sender) = (parts.method.clone(), Sender::new(connection.client(), &parts));
        let caller = Caller::new(&parts.headers, connection.client());
        let caller = Arc::new(caller.observed_by(&self.service.observation));
        let exchange = Arc::new(Exchange::new(version, Some(body), connection.clone()));
        let is_ending = *self.service.phase.borrow() >= Phase::HandedOver;
        if is_ending {
            exchange.close_connection();
        }
        let checked = exchange.refused().map(head_refused).map_or_else(|| self.guard.check(&parts), Err);
        let mut response = match checked {
            Ok(source) => self.route(parts, &caller, &exchange, source).await,
            Err(error) => {
                exchange.linger();
                let refusal = close_after(version, reject(error));
                if self.guard.may_read_refusal(&parts) {
                    self.for_page(parts, refusal).await
                } else {
                    refusal
                }
            }
        };
        let handler = response.extensions_mut().remove::<MatchedPath>();
        if exchange.settle_body().await == Settled::Closing || is_ending {
            response = close_after(version, response);
        }
        write_error(&mut response, dialect_of(handler.as_ref()));
        finish_head(&mut response, &caller);
        let path = handler.as_ref().map_or("none", |path| path.as_str());
        let labels = HttpLabels::new(path, &method, response.status());
        let error_code = response.extensions_mut().remove::<ApiError>().map(|error| error.code());
        if let Some(code) = error_code {
            self.refusals.note(response.status(), code, caller.id_text(), path, &sender);
        }
        caller.record_answer(method, handler, response.status(), error_code);
        let observed = Observed { service: self.service.clone(), labels, caller };
        response.map(|body| ResponseBody::new(body, &self.service.memory, in_flight, observed))
    }
}

/// Closes the connection after a refusal of the head, since later bytes cannot be trusted.
fn close_after(version: Version, mut response: Response<Body>) -> Response<Body> {
    if version < Version::HTTP_2 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn finish_head(response: &mut Response<Body>, caller: &Caller) {
    let headers = response.headers_mut();
    headers.insert("x-request-id", caller.id.clone());
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(status) = caller.limits() {
        insert_headers(status, headers);
    }
}

/// Counts and logs a response that was sent or abandoned.
#[derive(Debug)]
pub(super) struct Observed {
    service: Arc<Service>,
    labels: HttpLabels,
    caller: Arc<Caller>,
}

impl Drop for Observed {
    fn drop(&mut self) {
        let seconds = self.caller.arrived.elapsed().as_secs_f64();
        self.service.served.borrow().metrics.observe(&self.labels, seconds);
        tracing::debug!(request = self.caller.id_text(), labels = ?self.labels, seconds, "answered");
    }
}
