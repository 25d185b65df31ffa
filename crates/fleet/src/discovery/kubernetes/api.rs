//! HTTP client for the Kubernetes API server. Does not know resources.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::KubernetesApi;
use crate::body_lines::BodyLines;
use crate::client_tls::client_tls;

/// Duration of a watch in seconds, after which the API server ends it and the client starts it again.
pub(super) const WATCH_S: u64 = 240;
/// Timeout of the head of a response, and of a whole list.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time without a line of a watch, after which the client gives it up.
const MAX_SILENCE: Duration = Duration::from_secs(WATCH_S + 30);
/// Maximum bytes of a page of a list.
const MAX_LIST_BYTES: usize = 8 << 20;
/// Maximum bytes of a token.
const MAX_TOKEN_BYTES: usize = 64 << 10;

/// Reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiFault {
    /// The resource version has expired: list again.
    #[error("the resource version is too old")]
    Gone,
    /// Any other fault.
    #[error("{0}")]
    Other(String),
}

/// A client of the API server.
#[derive(Debug)]
pub(super) struct Api {
    config: KubernetesApi,
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
}

/// The lines of a watch.
#[derive(Debug)]
pub(super) struct Watch(BodyLines);

impl Api {
    /// # Errors
    /// When the certificates cannot be read.
    pub fn new(config: &KubernetesApi) -> Result<Self, String> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(Some(TIMEOUT));
        // TCP keepalive detects a watch whose connection was lost silently.
        http.set_keepalive(Some(Duration::from_secs(30)));
        let ca = config.ca_file.as_deref().filter(|_| config.url.starts_with("https:"));
        let tls = client_tls(ca, None, b"http/1.1")?;
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .build(HttpsConnector::from((http, tls)));
        Ok(Self { config: config.clone(), client })
    }

    /// Requests a page of a list.
    pub async fn list(&self, path: &str) -> Result<Bytes, ApiFault> {
        let other = |reason: &str| ApiFault::Other(reason.to_owned());
        let body = self.get(path).await?;
        let read = tokio::time::timeout(TIMEOUT, Limited::new(body, MAX_LIST_BYTES).collect()).await;
        let read = read.map_err(|_| other("the list did not come in time"))?;
        Ok(read.map_err(|_| other("the list broke off, or is too long"))?.to_bytes())
    }

    /// Starts a watch.
    pub async fn watch(&self, path: &str) -> Result<Watch, ApiFault> {
        Ok(Watch(BodyLines::new(Some(self.get(path).await?), None)))
    }

    async fn get(&self, path: &str) -> Result<Incoming, ApiFault> {
        let other = |reason: String| ApiFault::Other(reason);
        let mut request = Request::get(format!("{}{path}", self.config.url.trim_end_matches('/')))
            .header(header::ACCEPT, "application/json");
        if let Some(file) = &self.config.token_file {
            let read = tokio::fs::read_to_string(file).await;
            let token = read.map_err(|error| other(format!("{}: {error}", file.display())))?;
            let token = token.trim();
            let value = HeaderValue::try_from(format!("Bearer {token}"));
            let value = value.ok().filter(|_| token.len() <= MAX_TOKEN_BYTES);
            let mut value = value.ok_or_else(|| other("the token cannot be sent".to_owned()))?;
            value.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, value);
        }
        let request = request.body(Empty::new()).map_err(|error| other(error.to_string()))?;
        let answer = tokio::time::timeout(TIMEOUT, self.client.request(request)).await;
        let answer = answer.map_err(|_| other("the API server did not answer in time".to_owned()))?;
        let answer = answer
            .map_err(|error| other(format!("the API server cannot be reached: {}", deepest(&error))))?;
        match answer.status() {
            StatusCode::OK => Ok(answer.into_body()),
            StatusCode::GONE => Err(ApiFault::Gone),
            status => Err(other(format!("the API server answered with {status}"))),
        }
    }
}

/// The innermost cause of an error, whose message the outer ones omit.
fn deepest(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

impl Watch {
    /// Waits for the next line; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, String> {
        let line = tokio::time::timeout(MAX_SILENCE, self.0.next()).await;
        line.map_err(|_| "the watch was silent for too long".to_owned())?.or(Ok(None))
    }
}
