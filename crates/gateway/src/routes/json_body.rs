//! The bytes of a JSON body, and what the answer to one carries. Refuses to read the JSON itself.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, header};

use crate::app::App;
use crate::config::WORK_FACTOR;
use crate::memory::Reservation;
use crate::openai::{ApiError, IgnoredParameters, ReadOptions};
use crate::server::{HeldBody, RequestContext};

/// The body of a request that is said to be JSON.
#[derive(Debug)]
pub(super) struct JsonBody {
    /// All of it.
    body: HeldBody,
    /// How to read them.
    options: ReadOptions,
    /// The request.
    pub context: Arc<RequestContext>,
}

impl JsonBody {
    /// How many bytes it has.
    pub fn n_bytes(&self) -> usize {
        self.body.bytes.len()
    }

    /// Reads it with `parse`, and drops the bytes. Until the returned reservation is dropped, memory is reserved for
    /// the work on what was read.
    ///
    /// # Errors
    /// What `parse` gives; 503 when there is no memory for it.
    pub fn read<T>(
        self,
        parse: impl FnOnce(&[u8], &ReadOptions) -> Result<T, ApiError>,
    ) -> Result<(T, Reservation), ApiError> {
        let HeldBody { bytes, mut memory } = self.body;
        memory.cover(bytes.len().saturating_mul(WORK_FACTOR))?;
        Ok((parse(&bytes, &self.options)?, memory))
    }
}

impl FromRequestParts<Arc<App>> for JsonBody {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let context = parts
            .extensions
            .get::<Arc<RequestContext>>()
            .cloned()
            .ok_or_else(|| ApiError::internal_error("unknown"))?;
        check_type(&parts.headers)?;
        let timeout = Duration::from_secs(app.config.server.body_timeout_s);
        let body = context.read_body(app.config.api.max_body_bytes, timeout, &app.memory).await?;
        let options = ReadOptions {
            strict_parameters: app.config.api.strict_parameters,
            max_stop_strings: app.config.api.max_stop_strings,
        };
        Ok(Self { body, options, context })
    }
}

/// The app's state, as handlers name it.
pub(super) type AppState = State<Arc<App>>;

fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let is_plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if !headers.get_all(header::CONTENT_ENCODING).iter().all(is_plain) {
        return Err(ApiError::unsupported_encoding());
    }
    let Some(sent) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let media_type = sent.as_bytes().split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    let is_json = media_type.eq_ignore_ascii_case(b"application/json")
        || (media_type.len() > 5 && media_type[media_type.len() - 5..].eq_ignore_ascii_case(b"+json"));
    if is_json { Ok(()) } else { Err(ApiError::unsupported_media_type()) }
}

/// Names in a header what was not understood.
pub(super) fn with_ignored(response: impl IntoResponse, ignored: &IgnoredParameters) -> Response {
    let mut response = response.into_response();
    if let Some(value) = ignored.header_value().and_then(|names| HeaderValue::try_from(names).ok()) {
        response.headers_mut().insert("x-throng-ignored", value);
    }
    response
}
