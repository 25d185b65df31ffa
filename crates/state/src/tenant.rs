//! Kept objects of one tenant. All keys are built here, so that no id is looked up without its tenant.

use std::sync::Arc;

use throng_store::{
    ListOrder, MAX_PAGE_ENTRIES, ObjectKey, ObjectKind, ObjectQuery, Quota, Store, StoreError, StoredObject,
};

use crate::error::StateError;

/// Objects of a tenant in a database, with its quota.
#[derive(Debug, Clone)]
pub struct TenantState {
    store: Arc<dyn Store>,
    tenant: Arc<str>,
    quota: Quota,
    retention_s: Option<u64>,
}

/// A page of a list.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// Entries of the page.
    pub data: Vec<T>,
    /// Whether entries follow after the page.
    pub has_more: bool,
}

impl<T> Page<T> {
    /// Maps each entry with `read`, and drops those without a result.
    pub fn filter_map<U>(self, read: impl FnMut(T) -> Option<U>) -> Page<U> {
        Page { data: self.data.into_iter().filter_map(read).collect(), has_more: self.has_more }
    }
}

impl TenantState {
    /// Creates the access to the objects of `tenant`, whose name contains its kind (project, key, token).
    pub fn new(store: Arc<dyn Store>, tenant: Arc<str>, quota: Quota) -> Self {
        Self { store, tenant, quota, retention_s: None }
    }

    /// Sets the time for which new objects are kept; `None` for ever.
    #[must_use]
    pub fn keeping_for(self, retention_s: Option<u64>) -> Self {
        Self { retention_s, ..self }
    }

    /// Seconds for which new objects are kept.
    pub fn retention_s(&self) -> Option<u64> {
        self.retention_s
    }

    /// Time at which an object created at this time expires.
    pub fn expiry(&self, created_unix_s: u64) -> Option<u64> {
        self.retention_s.map(|seconds| created_unix_s.saturating_add(seconds))
    }

    /// Database of the tenant.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Name of the tenant.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Quota of the tenant.
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Key of an object of the tenant.
    pub fn key(&self, kind: ObjectKind, id: &str) -> ObjectKey {
        ObjectKey::new(&*self.tenant, kind, id)
    }

    /// Reads an object; `what` is its name in errors.
    ///
    /// # Errors
    /// [`StateError::NotFound`], and errors of the database.
    pub async fn object(
        &self,
        kind: ObjectKind,
        id: &str,
        what: &'static str,
    ) -> Result<StoredObject, StateError> {
        let found = self.store.object(&self.key(kind, id)).await?;
        found.ok_or_else(|| StateError::NotFound { what, id: id.to_owned() })
    }

    /// Reads a page of objects of a kind, with the given parent and after the given id.
    ///
    /// # Errors
    /// [`StateError::NotFound`] for an unknown id, with `what` as the object's name; errors of the database.
    pub async fn page(
        &self,
        kind: ObjectKind,
        what: &'static str,
        (parent, after): (Option<&str>, Option<&str>),
        order: ListOrder,
        limit: usize,
    ) -> Result<Page<StoredObject>, StateError> {
        let limit = limit.clamp(1, MAX_PAGE_ENTRIES - 1);
        let query = ObjectQuery {
            parent: parent.map(str::to_owned),
            after: after.map(str::to_owned),
            order,
            // One more tells whether there is more.
            ..ObjectQuery::new(&*self.tenant, kind, limit + 1)
        };
        let mut data = self.store.objects(&query).await.map_err(|error| match (error, after) {
            (StoreError::UnknownObject, Some(id)) => StateError::NotFound { what, id: id.to_owned() },
            (other, _) => other.into(),
        })?;
        let has_more = data.len() > limit;
        data.truncate(limit);
        Ok(Page { data, has_more })
    }
}
