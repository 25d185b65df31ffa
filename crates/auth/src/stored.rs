//! Keys of the database, held in memory so that no request waits for the database. Does not know which
//! database.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use throng_store::{ApiKey, KeyDigest, KeyTable, Store, StoreError, now_unix_s};

use throng_api::ApiError;

/// Interval between queries to the database for changed keys.
const INTERVAL: Duration = Duration::from_millis(250);
/// Longest time for an answer of the database.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Keys of the database at the last known revision. Before the first reading there are none, so that every
/// key is refused. Clones share the keys.
#[derive(Debug, Clone, Default)]
pub struct StoredKeys {
    table: Arc<RwLock<Table>>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    /// Revision of the keys; `None` before they are read.
    revision: Option<i64>,
    keys: HashMap<KeyDigest, Arc<ApiKey>>,
    /// Organisations and projects that have keys.
    pub(super) scopes: KnownScopes,
}

/// Organisations and projects of stored keys by name, each represented by one of its keys, from which its id
/// and limits are taken.
#[derive(Debug, Default)]
pub(super) struct KnownScopes {
    organisations: HashMap<String, HashMap<String, Arc<ApiKey>>>,
}

impl Table {
    /// Adds keys that are new or have changed. A reading that is older than the present one is ignored.
    fn take(&mut self, changed: KeyTable) {
        if self.revision.is_some_and(|known| known > changed.revision) {
            return;
        }
        for key in changed.keys.into_iter().map(Arc::new) {
            self.scopes.take(&key);
            self.keys.insert(key.digest, key);
        }
        self.revision = Some(changed.revision);
    }
}

impl KnownScopes {
    /// Lets the key represent its project if it is not older than the present one.
    fn take(&mut self, key: &Arc<ApiKey>) {
        let projects = match self.organisations.get_mut(&key.organisation) {
            Some(projects) => projects,
            None => self.organisations.entry(key.organisation.clone()).or_default(),
        };
        match projects.get_mut(&key.project) {
            Some(known) => *known = key.clone(),
            None => drop(projects.insert(key.project.clone(), key.clone())),
        }
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
    /// Reads the keys of the database: all of them the first time, then those that have changed.
    ///
    /// # Errors
    /// When the database fails; the keys stay as they were.
    pub async fn refresh(&self, store: &dyn Store) -> Result<(), StoreError> {
        let known = self.table().revision;
        if let Some(known) = known {
            if store.revision().await? == known {
                return Ok(());
            }
            let changed = store.changed_keys(known).await?;
            // Servers of an older version do not say which ones they change.
            if !changed.keys.is_empty() {
                self.table.write().unwrap_or_else(PoisonError::into_inner).take(changed);
                return Ok(());
            }
        }
        let keys = store.keys().await?;
        // Made before it is shown, because it takes a while.
        let mut table = Table::default();
        table.take(keys);
        let mut shown = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if shown.revision == known {
            *shown = table;
        }
        Ok(())
    }

    /// Follows the database until the end, so that a change takes effect within a second. While the database
    /// fails, the last known keys stay valid; the beginning and the end of that time are logged.
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
        let table = self.table();
        let known = table.keys.get(digest).filter(|key| key.has_digest(digest));
        let key = known.ok_or_else(ApiError::invalid_api_key)?;
        if key.is_revoked() || key.is_expired(now_unix_s()) {
            return Err(ApiError::api_key_revoked());
        }
        Ok(key.clone())
    }

    /// The present table, locked for reading.
    pub(super) fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }
}
