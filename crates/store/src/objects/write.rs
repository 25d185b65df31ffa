//! A write: a change of an object, with items to append.

use super::{MAX_TENANT_BYTES, MAX_TENANT_OBJECTS, ObjectKey, StoredObject};

/// Maximum objects and bytes of a tenant. Beyond it, a write that adds to them is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Maximum number of objects.
    pub max_objects: u64,
    /// Maximum bytes, see [`super::ObjectUsage::n_bytes`].
    pub max_bytes: u64,
}

impl Default for Quota {
    fn default() -> Self {
        Self { max_objects: MAX_TENANT_OBJECTS, max_bytes: MAX_TENANT_BYTES }
    }
}

/// An item to append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewItem {
    /// Id of the item. If the object already has it, the item is not added.
    pub id: String,
    /// Body of the item.
    pub body: Vec<u8>,
}

/// The new state of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectChange {
    /// Version to replace; `None` for a new object.
    pub replaces: Option<u64>,
    /// See [`StoredObject::parent`].
    pub parent: Option<String>,
    /// Creation time, in seconds since the epoch; never changes.
    pub created_unix_s: u64,
    /// See [`StoredObject::expires_unix_s`].
    pub expires_unix_s: Option<u64>,
    /// See [`StoredObject::is_pending`].
    pub is_pending: bool,
    /// Body of the item.
    pub body: Vec<u8>,
}

/// A change of an object, items to append to it, or both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectWrite {
    /// Key of the object.
    pub key: ObjectKey,
    /// New state of the object; `None` to only append items.
    pub change: Option<ObjectChange>,
    /// Items to append.
    pub items: Vec<NewItem>,
    /// Owner that must have the object's lease, or else the write is refused.
    pub owner: Option<String>,
    /// Quota of the tenant.
    pub quota: Quota,
}

impl ObjectWrite {
    /// Creates an object.
    pub fn create(key: ObjectKey, created_unix_s: u64, body: Vec<u8>) -> Self {
        let change = ObjectChange {
            replaces: None,
            parent: None,
            created_unix_s,
            expires_unix_s: None,
            is_pending: false,
            body,
        };
        Self { change: Some(change), ..Self::append(key, Vec::new()) }
    }

    /// Replaces the body of an object, if its version has not changed since it was read.
    pub fn replace(object: &StoredObject, body: Vec<u8>) -> Self {
        let change = ObjectChange {
            replaces: Some(object.version),
            parent: object.parent.clone(),
            created_unix_s: object.created_unix_s,
            expires_unix_s: object.expires_unix_s,
            is_pending: object.is_pending,
            body,
        };
        Self { change: Some(change), ..Self::append(object.key.clone(), Vec::new()) }
    }

    /// Appends items.
    pub fn append(key: ObjectKey, items: Vec<NewItem>) -> Self {
        Self { key, change: None, items, owner: None, quota: Quota::default() }
    }

    /// Sets the parent of the changed object.
    #[must_use]
    pub fn with_parent(self, parent: Option<String>) -> Self {
        self.changed(|change| change.parent = parent)
    }

    /// Sets the expiry of the changed object.
    #[must_use]
    pub fn expiring(self, unix_s: Option<u64>) -> Self {
        self.changed(|change| change.expires_unix_s = unix_s)
    }

    /// Sets whether the changed object has work to do.
    #[must_use]
    pub fn pending(self, is_pending: bool) -> Self {
        self.changed(|change| change.is_pending = is_pending)
    }

    /// Appends items in the same transaction.
    #[must_use]
    pub fn with_items(mut self, items: Vec<NewItem>) -> Self {
        self.items = items;
        self
    }

    /// Refuses the write unless this owner has the object's lease.
    #[must_use]
    pub fn owned_by(mut self, owner: &str) -> Self {
        self.owner = Some(owner.to_owned());
        self
    }

    /// Sets the tenant's quota.
    #[must_use]
    pub fn within(mut self, quota: Quota) -> Self {
        self.quota = quota;
        self
    }

    fn changed(mut self, apply: impl FnOnce(&mut ObjectChange)) -> Self {
        if let Some(change) = &mut self.change {
            apply(change);
        }
        self
    }
}

/// Position of an appended item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemPlace {
    /// Number of the item.
    pub number: u64,
    /// Whether the item is new; if not, the object had an item with its id, which is unchanged.
    pub is_new: bool,
}

/// Result of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// New version of the object.
    pub version: u64,
    /// Positions of the items, in the order of the write.
    pub items: Vec<ItemPlace>,
}
