//! Answers to questions with the same meaning as an earlier one, by the embeddings of both. Both questions
//! have the same tenant and the same request except for the user's last text; the answers are those of the
//! response cache. Does not make embeddings.

mod index;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use throng_core::request::{SamplingParams, TokenId};
use throng_fleet::replica::ReplicaRequest;
use tokio::time::timeout;

use self::index::{Index, unit};
use super::key::CacheKey;
use crate::config::{SemanticCacheConfig, SemanticMode};

/// Outcome of the search for a similar question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookUp {
    /// A similar question was found, and its answer was returned.
    Hit,
    /// A similar question was found, and only counted.
    Reported,
    /// There is no similar question.
    Miss,
    /// The question had no embedding in time.
    Failed,
}

impl LookUp {
    /// All outcomes of a look-up.
    pub const ALL: [Self; 4] = [Self::Hit, Self::Reported, Self::Miss, Self::Failed];

    /// Name in the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Reported => "reported",
            Self::Miss => "miss",
            Self::Failed => "failed",
        }
    }
}

/// Contents and counts of the semantic cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SemanticStats {
    /// Questions by [`LookUp`], in the order of [`LookUp::ALL`].
    pub look_ups: [u64; LookUp::ALL.len()],
    /// Number of questions in the index.
    pub n_questions: usize,
}

/// A question, with the data for finding similar ones.
pub struct Question {
    /// Id of the request.
    pub request_id: String,
    /// The prompt with a placeholder for the question.
    pub frame: Arc<[TokenId]>,
    /// Requested maximum of output tokens; the default depends on the length of the prompt.
    pub max_tokens: Option<u32>,
    /// Embedding of the question, which is computed when this is awaited; `None` if that failed.
    pub embedding: BoxFuture<'static, Option<Vec<f32>>>,
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question").field("request_id", &self.request_id).finish_non_exhaustive()
    }
}

impl Question {
    /// The request with a placeholder for the question: the part that two questions must have in common.
    pub fn frame(&self, request: &ReplicaRequest) -> ReplicaRequest {
        let max_tokens = self.max_tokens.unwrap_or(u32::MAX);
        let sampling = Arc::new(SamplingParams { max_tokens, ..(*request.sampling).clone() });
        ReplicaRequest { prompt: self.frame.clone(), sampling, ..request.clone() }
    }
}

/// Index of the questions of all models.
#[derive(Debug)]
pub struct SemanticCache {
    config: SemanticCacheConfig,
    index: Mutex<Index<CacheKey>>,
    counts: [AtomicU64; LookUp::ALL.len()],
}

impl SemanticCache {
    /// Creates an empty cache.
    pub fn new(config: SemanticCacheConfig) -> Self {
        let index = Mutex::new(Index::new(config.max_entries));
        Self { config, index, counts: Default::default() }
    }

    /// Settings of the cache.
    pub fn config(&self) -> &SemanticCacheConfig {
        &self.config
    }

    /// The answer to a similar question of the same `frame`, if one `is_kept` and may be returned. The
    /// question is added with its own `answer` for later ones.
    pub(crate) async fn similar(
        &self,
        question: Question,
        frame: CacheKey,
        answer: CacheKey,
        is_kept: impl Fn(&CacheKey) -> bool,
    ) -> Option<CacheKey> {
        let Question { request_id, embedding, .. } = question;
        let limit = Duration::from_millis(self.config.timeout_ms);
        let vector = timeout(limit, embedding).await.ok().flatten().and_then(unit);
        let Some(vector) = vector else {
            self.failed("its embedding was not made in time");
            return None;
        };
        let found = {
            let mut index = self.index();
            let found = index.nearest(&frame, &vector, is_kept);
            index.remember(frame, vector, answer);
            found
        };
        let Some((key, similarity)) = found.filter(|found| found.1 >= self.config.min_similarity) else {
            self.count(LookUp::Miss);
            return None;
        };
        let is_served = self.config.mode == SemanticMode::Serve;
        self.count(if is_served { LookUp::Hit } else { LookUp::Reported });
        tracing::info!(request = request_id, similarity, is_served, "a similar question was answered before");
        is_served.then_some(key)
    }

    /// Contents and counts of the semantic cache.
    pub fn stats(&self) -> SemanticStats {
        let look_ups = [0, 1, 2, 3].map(|idx| self.counts[idx].load(Ordering::Relaxed));
        SemanticStats { look_ups, n_questions: self.index().len() }
    }

    /// Counts and logs a question without an embedding.
    pub fn failed(&self, reason: &str) {
        self.count(LookUp::Failed);
        tracing::debug!(reason, "a question is not compared with others");
    }

    fn count(&self, look_up: LookUp) {
        self.counts[look_up as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn index(&self) -> MutexGuard<'_, Index<CacheKey>> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
