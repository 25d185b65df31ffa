//! Settings of overload control. Does not know requests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use throng_core::fleet::overload::ServiceClass;

/// Limits of waiting times; 0 disables a limit.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct OverloadConfig {
    /// Longest predicted wait for the first step in ms; a request beyond it is refused with 503.
    pub max_queue_wait_ms: u64,
    /// Default deadline of requests in ms: the time from a request's arrival after which its answer is of
    /// no use.
    pub default_deadline_ms: u64,
    /// Longest time in ms from a request's arrival to its first token, after which it ends with an error.
    pub first_token_timeout_ms: u64,
    /// Longest time in ms between two tokens of a request.
    pub idle_timeout_ms: u64,
    /// Longest time in ms from a request's arrival to its end.
    pub total_timeout_ms: u64,
    /// The most urgent class that a request may have.
    pub most_urgent_class: ClassSetting,
    /// The most urgent class for keys of the database, by key prefix, project or organisation.
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

/// Name of a class of service in settings.
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
