//! Requests with an `Idempotency-Key` that are sent again: generated once by the gateways that share a
//! database, and answered with the same bytes. Does not generate answers.
//!
//! The gateway that answers a request claims its key in the database and renews the claim every second. When
//! renewal stops, another gateway claims it; clocks are not compared. The claim is fenced: a former owner's
//! answer is not stored.

mod recording;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use sha2::{Digest, Sha256};
use throng_store::{AnswerClaim, ClaimBeat, Claimed, KeptAnswer, Store, now_unix_s};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use self::recording::Recording;
use crate::app::App;
use crate::caller::Caller;
use throng_api::ApiError;
use throng_http::retry_after::retry_after_s;

/// Header with the key.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("idempotency-key");
/// Header of an answer that was generated for an earlier request.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const MAX_KEY_BYTES: usize = 255;
/// Seconds for which answers are kept.
const KEPT_FOR_S: u64 = 24 * 60 * 60;
/// Longest time for an answer of the database, after which the request is refused.
const STORE_LIMIT: Duration = Duration::from_secs(1);
/// Longest wait for a request that another gateway is answering.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval at which such a request is checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Time without renewal after which the owner of a claim counts as dead.
const DEAD_AFTER: Duration = Duration::from_secs(5);
/// Number of claims for each deletion of expired answers.
const CLAIMS_PER_SWEEP: u32 = 256;

/// A request with a key, which is generated only once.
#[derive(Debug)]
pub(crate) struct Repeatable {
    store: Arc<dyn Store>,
    claim: AnswerClaim,
}

impl Repeatable {
    /// Creates it from a head and body, if the request has a key and there is a database.
    ///
    /// # Errors
    /// 400 for an invalid key.
    pub fn of(
        app: &App,
        caller: &Caller,
        headers: &HeaderMap,
        route: &str,
        body: &[u8],
    ) -> Result<Option<Self>, ApiError> {
        let store = app.policy.ledger.as_ref().and_then(|ledger| ledger.store());
        let Some((store, value)) = store.zip(headers.get(HEADER)) else { return Ok(None) };
        let is_one = headers.get_all(HEADER).iter().count() == 1;
        let key = value.to_str().unwrap_or_default();
        if !is_one || key.is_empty() || key.len() > MAX_KEY_BYTES {
            let reason = format!("The key must be one of 1 to {MAX_KEY_BYTES} printable ASCII characters.");
            return Err(ApiError::invalid_value("Idempotency-Key", reason));
        }
        let digest = Sha256::new().chain_update(route).chain_update([0]).chain_update(body).finalize();
        let claim = AnswerClaim {
            tenant: caller.tenant().0.to_string(),
            key: key.to_owned(),
            request: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            owner: uuid::Uuid::new_v4().simple().to_string(),
            expires_unix_s: now_unix_s() + KEPT_FOR_S,
        };
        Ok(Some(Self { store: store.clone(), claim }))
    }

    /// The kept answer, or one that `run` generates now: it is generated and kept to its end even if the
    /// client disconnects.
    ///
    /// # Errors
    /// 400 for a key of another request, 409 if the request is still being answered, 503 if the database
    /// does not answer; the errors of `run`.
    pub async fn answer(
        self,
        app: &App,
        run: impl Future<Output = Result<Response, ApiError>> + Send + 'static,
    ) -> Result<Response, ApiError> {
        if let Some(answer) = self.claim().await? {
            return Ok(replay(answer));
        }
        if fastrand::u32(..CLAIMS_PER_SWEEP) == 0 {
            let store = self.store.clone();
            tokio::spawn(async move { store.forget_answers(now_unix_s()).await.map(drop) });
        }
        let (told, answer) = oneshot::channel();
        let recording = Recording::new(self.store, self.claim, &app.work.memory);
        tokio::spawn(recording.record(run, told));
        answer.await.unwrap_or_else(|_| Err(ApiError::internal_error("unknown")))
    }

    /// Waits until this gateway has claimed the request, or it has been answered.
    async fn claim(&self) -> Result<Option<KeptAnswer>, ApiError> {
        let deadline = Instant::now() + PATIENCE;
        let (mut seen, mut dead): (Option<(ClaimBeat, Instant)>, Option<ClaimBeat>) = (None, None);
        loop {
            let claiming = self.store.claim_answer(&self.claim, now_unix_s(), dead.as_ref());
            let claimed = match timeout(STORE_LIMIT, claiming).await {
                Ok(Ok(claimed)) => claimed,
                Ok(Err(_)) | Err(_) => {
                    let reason = "The database that keeps answers does not answer.";
                    return Err(ApiError::overloaded(reason, retry_after_s()));
                }
            };
            let beat = match claimed {
                Claimed::Granted => return Ok(None),
                Claimed::Answered(answer) => return Ok(Some(answer)),
                Claimed::OtherRequest => return Err(ApiError::idempotency_mismatch()),
                Claimed::Full => {
                    let reason = "Too many requests with keys are being answered.";
                    return Err(ApiError::overloaded(reason, retry_after_s()));
                }
                Claimed::Taken(beat) => beat,
            };
            let now = Instant::now();
            if now >= deadline {
                return Err(ApiError::in_progress(retry_after_s()));
            }
            match &seen {
                Some((before, since)) if *before == beat => {
                    dead = (now - *since >= DEAD_AFTER).then_some(beat);
                }
                _ => seen = Some((beat, now)),
            }
            sleep(LOOK_INTERVAL).await;
        }
    }
}

fn replay(answer: KeptAnswer) -> Response {
    let mut response = Response::new(Body::from(answer.body));
    let headers = response.headers_mut();
    if let Ok(content_type) = HeaderValue::try_from(answer.content_type) {
        headers.insert(header::CONTENT_TYPE, content_type);
    }
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    response
}
