//! The kept objects of one tenant: every key is made here, so that no id is looked up without its tenant.

use std::sync::Arc;

use throng_store::{ObjectKey, ObjectKind, Quota, Store, StoredObject};

use crate::error::StateError;

/// What a tenant has in a database, and how much it may have.
#[derive(Debug, Clone)]
pub struct TenantState {
    store: Arc<dyn Store>,
    tenant: Arc<str>,
    quota: Quota,
}

impl TenantState {
    /// Opens the objects of `tenant`, whose name says what it is (project, key, token).
    pub fn new(store: Arc<dyn Store>, tenant: Arc<str>, quota: Quota) -> Self {
        Self { store, tenant, quota }
    }

    /// The database.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The tenant's name.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// How much the tenant may have.
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Names an object of the tenant.
    pub fn key(&self, kind: ObjectKind, id: &str) -> ObjectKey {
        ObjectKey::new(&*self.tenant, kind, id)
    }

    /// Reads an object, which errors name as `what`.
    ///
    /// # Errors
    /// [`StateError::NotFound`], and what the database says.
    pub async fn object(
        &self,
        kind: ObjectKind,
        id: &str,
        what: &'static str,
    ) -> Result<StoredObject, StateError> {
        let found = self.store.object(&self.key(kind, id)).await?;
        found.ok_or_else(|| StateError::NotFound { what, id: id.to_owned() })
    }
}
