//! Settings of objects that are kept between requests. Does not know these objects.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use throng_store::{ApiKey, MAX_TENANT_BYTES, MAX_TENANT_OBJECTS, Quota};

const DAY_S: u64 = 24 * 60 * 60;

/// Bounds and retention of objects that are kept between requests.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct StateConfig {
    /// Days after which files, batches and responses are deleted; 0 for never.
    pub retention_days: u64,
    /// Days of retention for keys of the database, by key prefix, project or organisation.
    pub retention: BTreeMap<String, u64>,
    /// Maximum number of objects of a tenant.
    pub max_objects: u64,
    /// Maximum bytes of a tenant's objects.
    pub max_bytes: u64,
    /// Maximum bytes of a file.
    pub max_file_bytes: u64,
    /// Maximum number of batches that are answered at a time.
    pub max_batches: usize,
    /// Maximum number of lines of a batch that are answered at a time.
    pub max_batch_lines: usize,
}

impl Default for StateConfig {
    fn default() -> Self {
        Self {
            retention_days: 30,
            retention: BTreeMap::new(),
            max_objects: MAX_TENANT_OBJECTS,
            max_bytes: MAX_TENANT_BYTES,
            max_file_bytes: 200 << 20,
            max_batches: 4,
            max_batch_lines: 8,
        }
    }
}

impl StateConfig {
    /// Quota of each tenant.
    pub(crate) fn quota(&self) -> Quota {
        Quota { max_objects: self.max_objects, max_bytes: self.max_bytes }
    }

    /// Seconds for which objects of this key are kept; `None` for ever.
    pub(crate) fn retention_s(&self, key: Option<&ApiKey>) -> Option<u64> {
        let of_key = key.and_then(|key| {
            [&key.prefix, &key.project, &key.organisation]
                .into_iter()
                .find_map(|name| self.retention.get(name.as_str()))
        });
        let days = *of_key.unwrap_or(&self.retention_days);
        (days > 0).then(|| days.saturating_mul(DAY_S))
    }
}
