//! Answers that are generated once for equal requests of one tenant: requests that come during the
//! generation read it too, later ones get the kept answer. Below the session, so that text, stop strings,
//! usage and limits are computed for each request. Does not know text, routes and HTTP.
#![forbid(unsafe_code)]

mod config;
mod disk_store;
mod disk_tier;
mod key;
mod policy;
mod reader;
mod replay;
mod shared_generation;
mod similar;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use throng_fleet::replica::{Generation, ReplicaError, ReplicaEvent, ReplicaRequest};
use tokio::time::Instant;

use self::key::{CacheKey, InFlightKey};
use self::reader::Reader;
use self::replay::{KeptAnswer, Replay, event_bytes};
use self::shared_generation::{LogBound, SharedGeneration};

pub use self::config::{ResponseCacheConfig, SemanticCacheConfig, SemanticMode};
pub use self::disk_tier::DiskTier;
pub use self::key::ModelInstance;
pub use self::policy::{CachePolicy, Sharing};
pub use self::shared_generation::Starting;
pub use self::similar::{LookUp, Question, SemanticCache, SemanticStats};

/// Divisor of the cache's bytes that gives the bound of one answer, and of all running generations
/// together.
const MAX_ANSWER_SHARE: usize = 16;
const MAX_IN_FLIGHT_SHARE: usize = 2;
/// Assumed bytes of an answer beside its events: its key and its entries in the cache.
const ANSWER_BYTES: usize = 256;
/// Assumed bytes of a typical answer.
const TYPICAL_ANSWER_BYTES: usize = 16 << 10;

/// Origin of an answer's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheUse {
    /// A kept answer.
    Hit,
    /// A kept answer to a question with the same meaning.
    Similar,
    /// A generation that runs for an equal request too.
    Coalesced,
    /// A generation that began for this request.
    Miss,
}

impl CacheUse {
    /// All origins of an answer.
    pub const ALL: [Self; 4] = [Self::Hit, Self::Similar, Self::Coalesced, Self::Miss];

    /// Name in the header `x-cache`, the log and the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Similar => "similar",
            Self::Coalesced => "coalesced",
            Self::Miss => "miss",
        }
    }
}

/// Cache of the answers of all models.
#[derive(Debug)]
pub struct ResponseCache(Option<Arc<Kept>>);

/// Kept answers and running generations.
#[derive(Debug)]
struct Kept {
    answers: Cache<CacheKey, Arc<KeptAnswer>, Bytes>,
    /// Disk tier of the kept answers.
    disk: Option<Arc<DiskTier>>,
    in_flight: Mutex<HashMap<InFlightKey, InFlight>>,
    semantic: Option<Arc<SemanticCache>>,
    bound: Arc<LogBound>,
    counts: [AtomicU64; CacheUse::ALL.len()],
}

#[derive(Debug, Clone)]
struct InFlight {
    shared: Weak<SharedGeneration>,
    begun: Instant,
}

#[derive(Debug, Clone)]
struct Bytes;

impl Weighter<CacheKey, Arc<KeptAnswer>> for Bytes {
    fn weight(&self, _: &CacheKey, answer: &Arc<KeptAnswer>) -> u64 {
        answer.n_bytes
    }
}

/// Contents and counts of the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Requests by [`CacheUse`], in the order of [`CacheUse::ALL`].
    pub requests: [u64; CacheUse::ALL.len()],
    /// Number of kept answers in memory.
    pub n_answers: usize,
    /// Bytes of the kept answers in memory.
    pub n_bytes: usize,
    /// Bytes of answers that are being generated.
    pub in_flight_bytes: usize,
    /// Number of answers on disk, and their bytes.
    pub on_disk: (usize, u64),
}

/// Origin of the answer to a request.
enum Found {
    Kept(Arc<KeptAnswer>),
    Joined(Arc<SharedGeneration>, u64, Instant),
    Begun(Arc<SharedGeneration>, Instant),
}

impl ResponseCache {
    /// Creates a cache of at most `max_bytes` in memory, over answers on disk; disabled if an answer in
    /// memory has no room. `semantic` finds answers to similar questions among them.
    pub fn new(max_bytes: usize, disk: Option<Arc<DiskTier>>, semantic: Option<Arc<SemanticCache>>) -> Self {
        Self((max_bytes / MAX_ANSWER_SHARE > ANSWER_BYTES).then(|| {
            let n_expected = (max_bytes / TYPICAL_ANSWER_BYTES).max(1);
            Arc::new(Kept {
                answers: Cache::with_weighter(n_expected, max_bytes as u64, Bytes),
                disk,
                in_flight: Mutex::default(),
                semantic,
                bound: Arc::new(LogBound {
                    max_bytes: max_bytes / MAX_ANSWER_SHARE,
                    max_total_bytes: max_bytes / MAX_IN_FLIGHT_SHARE,
                    total_bytes: AtomicUsize::new(0),
                }),
                counts: Default::default(),
            })
        }))
    }

    /// Answers a request to a model from the cache, by the running generation of an equal request, or by
    /// one that `start` begins. Also returns the origin of the tokens; `None` if the request may not share
    /// them.
    ///
    /// # Errors
    /// When no replica accepts the request.
    pub async fn generate(
        &self,
        model: ModelInstance,
        request: ReplicaRequest,
        sharing: Sharing<'_>,
        question: Option<Box<Question>>,
        start: impl FnOnce(ReplicaRequest) -> Starting,
    ) -> Result<(Box<dyn Generation>, Option<CacheUse>), ReplicaError> {
        let shareable = self.0.as_ref().filter(|_| sharing.is_deterministic);
        let key = shareable.and_then(|kept| Some((kept, key_of(model, &request, sharing)?)));
        let Some((kept, key)) = key else {
            return Ok((start(request).await?, None));
        };
        let n = request.n_continuations();
        if sharing.policy == CachePolicy::Use {
            kept.recall(&key.answer).await;
            if let Some(question) = question
                && let Some(answer) = kept.similar(&key, *question, model, &request, sharing).await
            {
                kept.count(CacheUse::Similar);
                return Ok((Box::new(Replay::new(answer, n)), Some(CacheUse::Similar)));
            }
        }
        let found = kept.find(&key, sharing.policy, || start(request), n);
        let (use_, reader) = match found {
            Found::Kept(answer) => {
                kept.count(CacheUse::Hit);
                return Ok((Box::new(Replay::new(answer, n)), Some(CacheUse::Hit)));
            }
            Found::Joined(shared, id, begun) => (CacheUse::Coalesced, (shared, id, begun)),
            Found::Begun(shared, begun) => (CacheUse::Miss, (shared, 0, begun)),
        };
        kept.count(use_);
        let (shared, id, begun) = reader;
        let reader = Reader::new(shared, id, n, begun, kept.clone(), key.answer).started().await?;
        Ok((Box::new(reader), Some(use_)))
    }

    /// The semantic cache, if there is one.
    pub fn semantic(&self) -> Option<&Arc<SemanticCache>> {
        self.0.as_ref()?.semantic.as_ref()
    }

    /// Contents and counts; `None` if the cache is disabled.
    pub fn stats(&self) -> Option<CacheStats> {
        self.0.as_ref().map(|kept| CacheStats {
            requests: [0, 1, 2, 3].map(|idx| kept.counts[idx].load(Ordering::Relaxed)),
            n_answers: kept.answers.len(),
            n_bytes: usize::try_from(kept.answers.weight()).unwrap_or(usize::MAX),
            in_flight_bytes: kept.bound.total_bytes.load(Ordering::Relaxed),
            on_disk: kept.disk.as_ref().map(|disk| disk.size()).unwrap_or_default(),
        })
    }
}

fn key_of(model: ModelInstance, request: &ReplicaRequest, sharing: Sharing<'_>) -> Option<InFlightKey> {
    if sharing.policy == CachePolicy::Bypass {
        return None;
    }
    let answer = CacheKey::new(model, request, sharing.text)?.of_model(sharing, request);
    Some(InFlightKey { answer, priority: request.priority })
}

impl Kept {
    fn find(
        &self,
        key: &InFlightKey,
        policy: CachePolicy,
        start: impl FnOnce() -> Starting,
        n: u32,
    ) -> Found {
        let kept = || self.answers.get(&key.answer).filter(|_| policy == CachePolicy::Use);
        if let Some(answer) = kept() {
            return Found::Kept(answer);
        }
        let mut in_flight = self.in_flight();
        // Dropped after the lock: the last holder of a generation ends it.
        let running = in_flight.get(key).and_then(|found| Some((found.shared.upgrade()?, found.begun)));
        if let Some((shared, begun)) = running.as_ref().filter(|_| policy == CachePolicy::Use)
            && let Some(id) = shared.join()
        {
            return Found::Joined(shared.clone(), id, *begun);
        }
        // One that has ended meanwhile was kept before its last reader went.
        if let Some(answer) = kept() {
            return Found::Kept(answer);
        }
        let begun = Instant::now();
        let shared = Arc::new(SharedGeneration::new(start(), n, self.bound.clone()));
        in_flight.retain(|_, found| found.shared.strong_count() > 0);
        in_flight.insert(key.clone(), InFlight { shared: Arc::downgrade(&shared), begun });
        drop(in_flight);
        drop(running);
        Found::Begun(shared, begun)
    }

    /// The kept answer to a similar question, if this one has no kept answer.
    async fn similar(
        &self,
        key: &InFlightKey,
        question: Question,
        model: ModelInstance,
        request: &ReplicaRequest,
        sharing: Sharing<'_>,
    ) -> Option<Arc<KeptAnswer>> {
        let semantic = self.semantic.as_ref()?;
        if self.answers.peek(&key.answer).is_some() || self.in_flight().contains_key(key) {
            return None;
        }
        let frame = key_of(model, &question.frame(request), sharing)?.answer;
        let is_kept = |key: &CacheKey| self.answers.peek(key).is_some();
        let found = semantic.similar(question, frame, key.answer.clone(), is_kept).await?;
        self.answers.get(&found)
    }

    /// Loads an answer that is kept only on disk into memory.
    async fn recall(&self, key: &CacheKey) {
        let Some(disk) = self.disk.as_ref().filter(|_| self.answers.peek(key).is_none()) else { return };
        if let Some(events) = disk.find(key).await {
            self.remember(key, events);
        }
    }

    fn keep(&self, key: &CacheKey, events: Box<[ReplicaEvent]>) {
        let answer = self.remember(key, events);
        self.disk.iter().for_each(|disk| disk.keep(key, &answer));
    }

    fn remember(&self, key: &CacheKey, events: Box<[ReplicaEvent]>) -> Arc<KeptAnswer> {
        let n_bytes = events.iter().map(event_bytes).sum::<usize>() + ANSWER_BYTES;
        let answer = Arc::new(KeptAnswer { events, n_bytes: n_bytes as u64 });
        self.answers.insert(key.clone(), answer.clone());
        answer
    }

    fn in_flight(&self) -> MutexGuard<'_, HashMap<InFlightKey, InFlight>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, use_: CacheUse) {
        self.counts[use_ as usize].fetch_add(1, Ordering::Relaxed);
    }
}
