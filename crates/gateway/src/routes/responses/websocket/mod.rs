//! WebSocket mode of OpenAI's Responses: a connection on which messages request responses, sent as the same
//! events as streams. Does not know how responses are generated.

mod session;
mod step;

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, header};
use throng_api::ApiError;
use throng_http::websocket::{Handshake, HandshakeError, Settings};
use throng_http::{Exchange, Phase};

use self::session::Session;
use super::super::json_body::AppState;
use crate::app::App;
use crate::caller::Caller;
use crate::rejection::Rejection;
use throng_http::retry_after::retry_after_s;

/// `GET /v1/responses` with an upgrade to a WebSocket connection.
pub(in crate::routes) async fn connect(
    State(app): AppState,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(exchange): Extension<Arc<Exchange>>,
    path: MatchedPath,
    mut request: Request,
) -> Response {
    let handshake = match accept(&app, &mut request) {
        Ok(handshake) => handshake,
        Err(error) => {
            let mut response = Rejection::from(error).into_response();
            if response.status() == http::StatusCode::UPGRADE_REQUIRED {
                let versions = HeaderValue::from_static("13");
                response.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, versions);
            }
            return response;
        }
    };
    let opening = Opening { caller, path, headers: headers_of_messages(request.headers()) };
    let settings = Settings {
        max_message_bytes: app.config.api.max_body_bytes,
        ping_interval: Duration::from_secs(app.config.api.ping_interval_s.max(1)),
        memory: app.work.memory.clone(),
    };
    exchange.go_on_as_websocket(handshake.connection, settings, move |socket| {
        Session::new(app, socket, opening).run()
    });
    handshake.response
}

/// The request that opened a connection.
#[derive(Debug)]
struct Opening {
    caller: Arc<Caller>,
    path: MatchedPath,
    /// The headers that hold for each message.
    headers: HeaderMap,
}

fn accept(app: &App, request: &mut Request) -> Result<Handshake<Body>, ApiError> {
    let handshake = Handshake::of(request, Body::empty).map_err(|error| match error {
        HandshakeError::Absent => ApiError::method_not_allowed("POST"),
        HandshakeError::Version => ApiError::unsupported_websocket_version(),
        HandshakeError::Malformed(reason) => ApiError::bad_websocket_handshake(&reason),
    })?;
    if *app.lifecycle.phase.borrow() >= Phase::HandedOver {
        return Err(ApiError::shutting_down(retry_after_s()));
    }
    Ok(handshake)
}

/// The headers of the request that opens a connection, without those that concern only that request.
fn headers_of_messages(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    for name in [
        header::CONNECTION,
        header::COOKIE,
        header::UPGRADE,
        header::SEC_WEBSOCKET_EXTENSIONS,
        header::SEC_WEBSOCKET_KEY,
        header::SEC_WEBSOCKET_PROTOCOL,
        header::SEC_WEBSOCKET_VERSION,
    ] {
        kept.remove(name);
    }
    kept.remove("x-request-id");
    kept
}
