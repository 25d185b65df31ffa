//! Requests to the API server of Kubernetes. Does not know what is asked for.

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

/// Seconds after which the API server ends a watch, and it is begun again.
pub(super) const WATCH_S: u64 = 240;
/// Timeout of the head of an answer, and of a list.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A watch that does not end by itself is given up after this time without a line.
const MAX_SILENCE: Duration = Duration::from_secs(WATCH_S + 30);
/// Most bytes of one page of a list.
const MAX_LIST_BYTES: usize = 8 << 20;
/// Most bytes of a token.
const MAX_TOKEN_BYTES: usize = 64 << 10;

/// Reasons for which there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiFault {
    /// The resource version is no longer known: list again.
    #[error("the resource version is too old")]
    Gone,
    /// Something else.
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
        // A watch that nobody ends is found dead.
        http.set_keepalive(Some(Duration::from_secs(30)));
        let ca = config.ca_file.as_deref().filter(|_| config.url.starts_with("https:"));
        let tls = client_tls(ca, None, b"http/1.1")?;
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .build(HttpsConnector::from((http, tls)));
        Ok(Self { config: config.clone(), client })
    }

    /// A page of a list.
    pub async fn list(&self, path: &str) -> Result<Bytes, ApiFault> {
        let other = |reason: &str| ApiFault::Other(reason.to_owned());
        let body = self.get(path).await?;
        let read = tokio::time::timeout(TIMEOUT, Limited::new(body, MAX_LIST_BYTES).collect()).await;
        let read = read.map_err(|_| other("the list did not come in time"))?;
        Ok(read.map_err(|_| other("the list broke off, or is too long"))?.to_bytes())
    }

    /// A watch.
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

/// The first cause of an error, which the outer ones do not name.
fn deepest(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

impl Watch {
    /// The next line; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, String> {
        let line = tokio::time::timeout(MAX_SILENCE, self.0.next()).await;
        line.map_err(|_| "the watch was silent for too long".to_owned())?.or(Ok(None))
    }
}
