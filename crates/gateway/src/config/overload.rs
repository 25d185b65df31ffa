//! What an operator can set about waiting. Does not know requests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use throng_core::fleet::overload::ServiceClass;

/// Limits of waiting. A limit of 0 is none.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct OverloadConfig {
    /// A request that is predicted to wait longer for its first step is refused with 503.
    pub max_queue_wait_ms: u64,
    /// The deadline of requests that name none: their whole answers are of no use later than this after their
    /// arrival.
    pub default_deadline_ms: u64,
    /// A request whose first token has not come so long after its arrival ends with an error.
    pub first_token_timeout_ms: u64,
    /// Longest time between two tokens of a request.
    pub idle_timeout_ms: u64,
    /// Longest time until the end of a request.
    pub total_timeout_ms: u64,
    /// The most urgent class that a request may ask for.
    pub most_urgent_class: ClassSetting,
    /// The same for the keys of the database of this prefix, project or organisation.
    pub classes: BTreeMap<String, ClassSetting>,
}

impl Default for OverloadConfig {
    fn default() -> Self {
        Self {
            max_queue_wait_ms: 30_000,
            default_deadline_ms: 0,
            first_token_timeout_ms: 0,
            idle_timeout_ms: 0,
            total_timeout_ms: 0,
            most_urgent_class: ClassSetting::Default,
            classes: BTreeMap::new(),
        }
    }
}

/// A class of service, as settings name it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names are those of `ServiceClass`")]
pub enum ClassSetting {
    System,
    Interactive,
    #[default]
    Default,
    Batch,
}

impl From<ClassSetting> for ServiceClass {
    fn from(setting: ClassSetting) -> Self {
        match setting {
            ClassSetting::System => Self::System,
            ClassSetting::Interactive => Self::Interactive,
            ClassSetting::Default => Self::Default,
            ClassSetting::Batch => Self::Batch,
        }
    }
}
