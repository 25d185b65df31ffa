//! A change of an object and what is appended to it, as one write.

use super::{MAX_TENANT_BYTES, MAX_TENANT_OBJECTS, ObjectKey, StoredObject};

/// Most objects and bytes that a tenant may have. A write that adds to them is refused beyond it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Objects.
    pub max_objects: u64,
    /// Bytes, see [`super::ObjectUsage::n_bytes`].
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
    /// Its id. One that the object has already changes nothing.
    pub id: String,
    /// Its body.
    pub body: Vec<u8>,
}

/// The new state of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectChange {
    /// Version that it replaces; `None` for a new object.
    pub replaces: Option<u64>,
    /// See [`StoredObject::parent`].
    pub parent: Option<String>,
    /// Time of its creation; does not change later.
    pub created_unix_s: u64,
    /// See [`StoredObject::expires_unix_s`].
    pub expires_unix_s: Option<u64>,
    /// See [`StoredObject::is_pending`].
    pub is_pending: bool,
    /// Its body.
    pub body: Vec<u8>,
}

/// A change of an object, items that are appended to it, or both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectWrite {
    /// The object.
    pub key: ObjectKey,
    /// Its new state; `None` to append items only.
    pub change: Option<ObjectChange>,
    /// Items to append.
    pub items: Vec<NewItem>,
    /// The write is refused unless this owner has the object's lease.
    pub owner: Option<String>,
    /// Bounds of the tenant.
    pub quota: Quota,
}

impl ObjectWrite {
    /// Makes a new object.
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

    /// Gives an object that was read another body, if nobody else has changed it since.
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

    /// Sets when the changed object expires.
    #[must_use]
    pub fn expiring(self, unix_s: Option<u64>) -> Self {
        self.changed(|change| change.expires_unix_s = unix_s)
    }

    /// Says whether some process has work to do for the changed object.
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

    /// Sets the tenant's bounds.
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

/// Place of an appended item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemPlace {
    /// Its number.
    pub number: u64,
    /// Whether it is new; else the object had an item of its id, which stays as it was.
    pub is_new: bool,
}

/// Result of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Version of the object.
    pub version: u64,
    /// Places of the items, in the order of the write.
    pub items: Vec<ItemPlace>,
}
