//! Client of a server that classifies texts, in the form of OpenAI's moderation endpoint. Does not know rules
//! and streams.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use throng_http::tls_roots::{trusting, trusting_nobody};
use tokio::sync::Semaphore;

use crate::config::{ClassifierConfig, OnFailure};

/// Maximum number of running requests to the classifier.
const MAX_CONCURRENT: usize = 256;
/// Maximum bytes of an answer of the classifier.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Maximum number of idle connections to the classifier.
const MAX_IDLE_CONNECTIONS: usize = 64;

/// A server that judges texts.
#[derive(Debug)]
pub(crate) struct Classifier {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    config: ClassifierConfig,
    uri: Uri,
    authorization: Option<HeaderValue>,
    free: Semaphore,
    n_failures: AtomicU64,
}

/// Judgement of one text: its forbidden category, if there is one.
pub(crate) type Judgement = Option<String>;

/// Error when the classifier gave no answer in time, and unjudged texts are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unavailable;

#[derive(Deserialize)]
struct Answer {
    results: Vec<Judged>,
}

#[derive(Deserialize)]
struct Judged {
    flagged: bool,
    #[serde(default)]
    categories: std::collections::BTreeMap<String, bool>,
}

impl Classifier {
    /// Creates the classifier of a configuration.
    ///
    /// # Errors
    /// A description of the unusable setting.
    pub fn new(config: &ClassifierConfig) -> Result<Self, String> {
        let uri: Uri =
            config.url.parse().map_err(|_| format!("classifier.url {:?} is no URL", config.url))?;
        let is_encrypted = uri.scheme_str() == Some("https");
        if !(is_encrypted || uri.scheme_str() == Some("http")) || uri.host().is_none() {
            return Err(format!("classifier.url {:?} must begin with http:// or https://", config.url));
        }
        if config.ca.is_some() && !is_encrypted {
            return Err("classifier.ca is for https:// only".to_owned());
        }
        let tls = if is_encrypted { trusting(config.ca.as_deref()) } else { Ok(trusting_nobody()) };
        let tls = tls.map_err(|fault| format!("classifier.ca: {fault}"))?;
        let value =
            |token: &throng_fleet::Secret| HeaderValue::try_from(format!("Bearer {}", token.reveal()));
        let authorization = config.token.as_ref().map(value).transpose();
        let mut authorization = authorization.map_err(|_| "classifier.token cannot be sent".to_owned())?;
        authorization.iter_mut().for_each(|value| value.set_sensitive(true));
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        let connector = HttpsConnector::from((http, std::sync::Arc::new(tls)));
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
            .build(connector);
        Ok(Self {
            client,
            config: config.clone(),
            uri,
            authorization,
            free: Semaphore::new(MAX_CONCURRENT),
            n_failures: AtomicU64::new(0),
        })
    }

    /// Whether it judges prompts.
    pub fn judges_input(&self) -> bool {
        self.config.input
    }

    /// Number of bytes of an answer that are judged together; `None` if answers are not judged.
    pub fn output_window_bytes(&self) -> Option<usize> {
        self.config.output.then_some(self.config.output_window_bytes.max(1))
    }

    /// Number of requests without an answer.
    pub fn n_failures(&self) -> u64 {
        self.n_failures.load(Ordering::Relaxed)
    }

    /// Judges texts, one judgement for each. Without an answer in time all are allowed, if so configured.
    ///
    /// # Errors
    /// When there is no answer in time, otherwise.
    pub async fn judge(&self, texts: &[String]) -> Result<Vec<Judgement>, Unavailable> {
        let asking = tokio::time::timeout(Duration::from_millis(self.config.timeout_ms), self.ask(texts));
        let failure = match asking.await {
            Ok(Ok(judgements)) => return Ok(judgements),
            Ok(Err(failure)) => failure,
            Err(_) => "no answer in time".to_owned(),
        };
        self.n_failures.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(failure, "the classifier of moderation did not answer");
        match self.config.on_failure {
            OnFailure::Allow => Ok(vec![None; texts.len()]),
            OnFailure::Refuse => Err(Unavailable),
        }
    }

    async fn ask(&self, texts: &[String]) -> Result<Vec<Judgement>, String> {
        let _place = self.free.acquire().await.map_err(|error| error.to_string())?;
        let mut body = serde_json::json!({ "input": texts });
        if let Some(model) = &self.config.model {
            body["model"] = model.as_str().into();
        }
        let mut request = Request::post(self.uri.clone()).header(header::CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Full::from(body.to_string())).map_err(|error| error.to_string())?;
        let answer = self.client.request(request).await.map_err(|error| error.to_string())?;
        if answer.status() != StatusCode::OK {
            return Err(format!("status {}", answer.status()));
        }
        let read = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
        let bytes = read.map_err(|error| error.to_string())?.to_bytes();
        let answer: Answer = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        if answer.results.len() != texts.len() {
            return Err(format!("{} results for {} texts", answer.results.len(), texts.len()));
        }
        Ok(answer.results.into_iter().map(Judged::judgement).collect())
    }
}

impl Judged {
    fn judgement(self) -> Judgement {
        let named = self.categories.into_iter().find(|(_, applies)| *applies).map(|(name, _)| name);
        self.flagged.then(|| named.unwrap_or_else(|| "flagged".to_owned()))
    }
}
