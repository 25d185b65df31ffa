//! Usage of requests, as data: entries of the ledger, and queries about them. Does not know databases.

use serde::{Deserialize, Serialize};

use crate::bounds::bounded_text;
use crate::money::{Cost, Prices};

/// Maximum number of time buckets in a query.
pub const MAX_USAGE_ROWS: usize = 100_000;

/// End of a request; worse ends have higher values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The model ended all answers.
    #[default]
    Stop,
    /// An answer reached its output token limit.
    Length,
    /// The client disconnected, or the answer was cut.
    Abort,
    /// The request failed.
    Error,
    /// The server ended while the request was running.
    Interrupted,
}

impl Outcome {
    /// Name of the outcome.
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

/// Usage of one request. Absent names are empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// Unique id of the entry: writing an entry again has no effect.
    pub id: String,
    /// Id of the request, as in its response.
    pub request_id: String,
    /// End of the request, in seconds since the epoch; for an interrupted one, its start.
    pub at_unix_s: u64,
    /// Id of the organisation.
    pub organisation_id: String,
    /// Id of the project.
    pub project_id: String,
    /// Id of the key; for a key of the configuration, its name in logs.
    pub key_id: String,
    /// Value of `user` in the request.
    pub user: String,
    /// Name of the model or adapter.
    pub model: String,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u64,
    /// Output tokens.
    pub generated_tokens: u64,
    /// Prices at the start of the request.
    pub prices: Prices,
    /// Milliseconds from the admission to the end of the last answer.
    pub latency_ms: u64,
    /// Outcome of the request.
    pub outcome: Outcome,
}

impl LedgerEntry {
    /// Cost of the request.
    pub fn cost(&self) -> Cost {
        self.prices.cost(self.prompt_tokens, self.cached_tokens, self.generated_tokens)
    }

    /// The entry with texts truncated to `max_bytes`, and without control characters.
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

    /// Number of all tokens, including cached ones.
    pub fn n_tokens(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.generated_tokens)
    }
}

/// Dimension by which usage is grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UsageGroup {
    /// Groups by project.
    Project,
    /// Groups by user.
    User,
    /// The API key.
    Key,
    /// Usage is grouped by model.
    Model,
}

impl UsageGroup {
    /// All dimensions of grouping.
    pub const ALL: [Self; 4] = [Self::Project, Self::User, Self::Key, Self::Model];

    /// Name in OpenAI's usage API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Project => "project_id",
            Self::User => "user_id",
            Self::Key => "api_key_id",
            Self::Model => "model",
        }
    }
}

/// A query about usage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageQuery {
    /// First second of the period.
    pub start_unix_s: u64,
    /// Second after the end of the period.
    pub end_unix_s: u64,
    /// Width of a time bucket in seconds; 0: all in one bucket.
    pub bucket_width_s: u64,
    /// Dimensions of the groups.
    pub group_by: Vec<UsageGroup>,
    /// Projects, users, keys and models to include; without a list of a dimension, all.
    pub only: Vec<(UsageGroup, Vec<String>)>,
}

/// A row of a query's result: one bucket and group. Dimensions that are not grouped by are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageRow {
    /// Start of the bucket, in seconds since the epoch.
    pub start_unix_s: u64,
    /// Id of the project.
    pub project_id: String,
    /// Name of the user.
    pub user: String,
    /// Id of the key.
    pub key_id: String,
    /// Name of the model.
    pub model: String,
    /// Number of requests.
    pub n_requests: u64,
    /// Number of prompt tokens, including cached ones.
    pub prompt_tokens: u64,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u64,
    /// Output tokens.
    pub generated_tokens: u64,
    /// Cost of these requests.
    pub cost: Cost,
}

/// Usage of one key in a day (UTC).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DailyTotal {
    /// Day, counted from the Unix epoch.
    pub day: u64,
    /// Id of the organisation.
    pub organisation_id: String,
    /// Id of the project.
    pub project_id: String,
    /// Id of the key.
    pub key_id: String,
    /// Number of tokens, including cached ones.
    pub n_tokens: u64,
    /// Cost of these tokens.
    pub cost: Cost,
}
