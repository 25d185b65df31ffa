//! The keys of the database, in memory: no request waits for the database. Does not know where the database is.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use throng_store::{ApiKey, KeyDigest, KeyTable, Store, StoreError};

use crate::openai::ApiError;

/// How often the database is asked whether keys have changed.
const INTERVAL: Duration = Duration::from_millis(500);
/// How long an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The keys of the database as they were at its last known revision; none before the first reading, so that every key is
/// refused until then. Clones share the keys.
#[derive(Debug, Clone, Default)]
pub struct StoredKeys {
    table: Arc<RwLock<Arc<Table>>>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    revision: i64,
    keys: HashMap<KeyDigest, Arc<ApiKey>>,
    /// Those that have keys.
    pub(super) scopes: KnownScopes,
}

/// The organisations and projects of stored keys by their names, each as one of its keys, which has its id and its limits.
#[derive(Debug, Default)]
pub(super) struct KnownScopes {
    organisations: HashMap<String, HashMap<String, Arc<ApiKey>>>,
}

impl KnownScopes {
    fn of<'a>(keys: impl Iterator<Item = &'a Arc<ApiKey>>) -> Self {
        let mut organisations: HashMap<String, HashMap<String, Arc<ApiKey>>> = HashMap::new();
        for key in keys {
            let projects = organisations.entry(key.organisation.clone()).or_default();
            projects.insert(key.project.clone(), key.clone());
        }
        Self { organisations }
    }

    /// A key of this organisation.
    pub fn organisation(&self, name: &str) -> Option<&ApiKey> {
        self.organisations.get(name)?.values().next().map(Arc::as_ref)
    }

    /// A key of this project.
    pub fn project(&self, organisation: &str, name: &str) -> Option<&ApiKey> {
        self.organisations.get(organisation)?.get(name).map(Arc::as_ref)
    }
}

impl StoredKeys {
    /// Takes the keys that the database has now.
    ///
    /// # Errors
    /// When the database fails; the keys stay as they were.
    pub async fn refresh(&self, store: &dyn Store) -> Result<(), StoreError> {
        if store.revision().await? != self.current().revision {
            let KeyTable { revision, keys } = store.keys().await?;
            let keys: HashMap<_, _> = keys.into_iter().map(|key| (key.digest, Arc::new(key))).collect();
            let scopes = KnownScopes::of(keys.values());
            let table = Arc::new(Table { revision, keys, scopes });
            *self.table.write().unwrap_or_else(PoisonError::into_inner) = table;
        }
        Ok(())
    }

    /// Follows the database for ever: a change is seen within a second. While the database fails, the last known keys
    /// hold; the log says when that begins and ends.
    pub async fn follow(self, store: Arc<dyn Store>) {
        let mut is_failing = false;
        loop {
            tokio::time::sleep(INTERVAL).await;
            match tokio::time::timeout(ANSWER_LIMIT, self.refresh(&*store)).await {
                Ok(Ok(())) if is_failing => {
                    is_failing = false;
                    tracing::info!("the database of keys answers again");
                }
                Ok(Ok(())) => {}
                failed if !is_failing => {
                    is_failing = true;
                    let reason = failed.map_or_else(
                        |_| "no answer".to_owned(),
                        |ended| ended.err().map(|error| error.to_string()).unwrap_or_default(),
                    );
                    tracing::warn!(reason, "the database of keys fails; the last known keys stay valid");
                }
                _ => {}
            }
        }
    }

    /// The key with this digest.
    ///
    /// # Errors
    /// 401 for an unknown, a revoked and an expired key.
    pub(super) fn find(&self, digest: &KeyDigest) -> Result<Arc<ApiKey>, ApiError> {
        let table = self.current();
        let known = table.keys.get(digest).filter(|key| key.has_digest(digest));
        let key = known.ok_or_else(ApiError::invalid_api_key)?;
        let now_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if key.is_revoked() || key.is_expired(now_unix_s) {
            return Err(ApiError::api_key_revoked());
        }
        Ok(key.clone())
    }

    /// The table as it is now.
    pub(super) fn current(&self) -> Arc<Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
