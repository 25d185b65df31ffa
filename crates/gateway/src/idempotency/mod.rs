//! Requests that are sent again under one `Idempotency-Key`: generated once, whichever gateway of those that
//! share the database they reach, and answered with the same bytes. Does not know how answers are made.
//!
//! Whoever answers a request claims its key in the database and says every second that it lives. Where that
//! stops, another gateway takes the claim over; clocks are not compared. The claim is fenced: an owner that
//! comes back late can keep nothing.

mod recording;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use sha2::{Digest, Sha256};
use throng_store::{AnswerClaim, ClaimBeat, Claimed, KeptAnswer, Store};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use self::recording::Recording;
use crate::app::App;
use crate::caller::Caller;
use crate::retry_after::retry_after_s;
use throng_api::ApiError;

/// The header.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("idempotency-key");
/// Says that an answer is one that was generated before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const MAX_KEY_BYTES: usize = 255;
/// Time for which answers are kept.
const KEPT_FOR_S: u64 = 24 * 60 * 60;
/// The database answers within this time, or the request is refused.
const STORE_LIMIT: Duration = Duration::from_secs(1);
/// A request that is being answered elsewhere is waited for so long.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval at which it is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// An owner without a sign of life for so long has died.
const DEAD_AFTER: Duration = Duration::from_secs(5);
/// Number of claims of which one deletes expired answers.
const CLAIMS_PER_SWEEP: u32 = 256;

/// A request that is not to be generated twice.
#[derive(Debug)]
pub(crate) struct Repeatable {
    store: Arc<dyn Store>,
    claim: AnswerClaim,
}

impl Repeatable {
    /// The request of this head and body, if it has a key and there is a database.
    ///
    /// # Errors
    /// 400 for a key that is none.
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

    /// The answer that was kept, or that `run` makes now: it is made and kept to its end even if the client
    /// goes.
    ///
    /// # Errors
    /// 400 for a key of another request, 409 where the request is still being answered, 503 where the
    /// database does not answer, and what `run` gives.
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

    /// Waits until the request is the caller's, or has been answered.
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

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
