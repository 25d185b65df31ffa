//! What requests used, as data: entries of the ledger, and questions about them. Does not know databases.

use serde::{Deserialize, Serialize};

use crate::bounds::bounded_text;
use crate::money::{Cost, Prices};

/// Most buckets of time that one question covers.
pub const MAX_USAGE_ROWS: usize = 100_000;

/// End of a request; worse ends come later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The model ended all answers.
    #[default]
    Stop,
    /// An answer has as many tokens as it may have.
    Length,
    /// Its client went away, or it was cut.
    Abort,
    /// The request failed.
    Error,
    /// The server ended while it ran.
    Interrupted,
}

impl Outcome {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
            Self::Interrupted => "interrupted",
        }
    }
}

/// Usage of one request. Names that do not exist are empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// Its name, different from those of all other entries: an entry that is written again changes nothing.
    pub id: String,
    /// The request's id, as its answer shows it.
    pub request_id: String,
    /// Time of its end, in seconds since the epoch; of an interrupted one, of its beginning.
    pub at_unix_s: u64,
    /// The organisation's id.
    pub organisation_id: String,
    /// The project's id.
    pub project_id: String,
    /// The key's id; of a key of the configuration, the name that logs show.
    pub key_id: String,
    /// The `user` of the request.
    pub user: String,
    /// The model or adapter.
    pub model: String,
    /// Tokens of its prompts.
    pub prompt_tokens: u64,
    /// Number of these tokens that were found in the cache.
    pub cached_tokens: u64,
    /// Tokens that were generated for it.
    pub generated_tokens: u64,
    /// The prices when it began.
    pub prices: Prices,
    /// Time from its admission to the end of its last answer.
    pub latency_ms: u64,
    /// Its end.
    pub outcome: Outcome,
}

impl LedgerEntry {
    /// Its cost.
    pub fn cost(&self) -> Cost {
        self.prices.cost(self.prompt_tokens, self.cached_tokens, self.generated_tokens)
    }

    /// The same entry with texts of at most so many bytes, and without control characters in them.
    pub(crate) fn with_texts_of(&self, max_bytes: usize) -> Self {
        let text = |text: &String| bounded_text(text, max_bytes).into_owned();
        Self {
            id: text(&self.id),
            request_id: text(&self.request_id),
            organisation_id: text(&self.organisation_id),
            project_id: text(&self.project_id),
            key_id: text(&self.key_id),
            user: text(&self.user),
            model: text(&self.model),
            ..*self
        }
    }

    /// All tokens, cached ones included.
    pub fn n_tokens(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.generated_tokens)
    }
}

/// Dimension by which usage is grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UsageGroup {
    /// The project.
    Project,
    /// The user.
    User,
    /// The key.
    Key,
    /// The model.
    Model,
}

impl UsageGroup {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Project, Self::User, Self::Key, Self::Model];

    /// Its name in OpenAI's usage API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Project => "project_id",
            Self::User => "user_id",
            Self::Key => "api_key_id",
            Self::Model => "model",
        }
    }
}

/// A question about usage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageQuery {
    /// First second.
    pub start_unix_s: u64,
    /// Second after the last.
    pub end_unix_s: u64,
    /// The width of a bucket of time; all in one bucket if 0.
    pub bucket_width_s: u64,
    /// Dimensions of the groups.
    pub group_by: Vec<UsageGroup>,
    /// Projects, users, keys and models that are wanted; an absent list restricts nothing.
    pub only: Vec<(UsageGroup, Vec<String>)>,
}

/// An answer to a [`UsageQuery`]: one bucket and group. What is not told apart is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageRow {
    /// Begin of the bucket.
    pub start_unix_s: u64,
    /// The project's id.
    pub project_id: String,
    /// The user.
    pub user: String,
    /// The key's id.
    pub key_id: String,
    /// The model.
    pub model: String,
    /// Number of requests.
    pub n_requests: u64,
    /// Prompt tokens, cached ones included.
    pub prompt_tokens: u64,
    /// Prompt tokens that were found in the cache.
    pub cached_tokens: u64,
    /// Output tokens.
    pub generated_tokens: u64,
    /// Their cost.
    pub cost: Cost,
}

/// Usage of one key in a day (UTC).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DailyTotal {
    /// Days since the epoch.
    pub day: u64,
    /// The organisation's id.
    pub organisation_id: String,
    /// The project's id.
    pub project_id: String,
    /// The key's id.
    pub key_id: String,
    /// Tokens, cached ones included.
    pub n_tokens: u64,
    /// Their cost.
    pub cost: Cost,
}
