//! Queries for objects and items, in pages of bounded size.

use super::{ObjectKey, ObjectKind};

/// Maximum number of objects or items of a page.
pub const MAX_PAGE_ENTRIES: usize = 1_000;
/// Maximum bytes of a page's bodies, unless its first entry alone has more.
pub const MAX_PAGE_BYTES: u64 = 8 << 20;

/// Order of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ListOrder {
    /// Oldest first.
    #[default]
    Ascending,
    /// Newest first.
    Descending,
}

/// A page of a tenant's objects.
#[derive(Debug, Clone)]
pub struct ObjectQuery {
    /// Tenant of the objects.
    pub tenant: String,
    /// Kind of the objects.
    pub kind: ObjectKind,
    /// Parent of the objects; `None`: any.
    pub parent: Option<String>,
    /// Id of the object before the page. [`StoreError::UnknownObject`] if it does not exist.
    ///
    /// [`StoreError::UnknownObject`]: crate::StoreError::UnknownObject
    pub after: Option<String>,
    /// Order of the objects.
    pub order: ListOrder,
    /// Maximum number of objects, up to [`MAX_PAGE_ENTRIES`].
    pub limit: usize,
}

impl ObjectQuery {
    /// Creates a query for the tenant's oldest objects of a kind.
    pub fn new(tenant: impl Into<String>, kind: ObjectKind, limit: usize) -> Self {
        let (parent, after, order) = (None, None, ListOrder::Ascending);
        Self { tenant: tenant.into(), kind, parent, after, order, limit }
    }
}

/// Position before a page of items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemAfter {
    /// After the item with this number, which need not exist.
    Number(u64),
    /// After the item with this id. [`StoreError::UnknownObject`] if it does not exist.
    ///
    /// [`StoreError::UnknownObject`]: crate::StoreError::UnknownObject
    Id(String),
}

/// A page of an object's items. [`StoreError::UnknownObject`] if the object does not exist.
///
/// [`StoreError::UnknownObject`]: crate::StoreError::UnknownObject
#[derive(Debug, Clone)]
pub struct ItemQuery {
    /// Object of the items.
    pub key: ObjectKey,
    /// Position before the page; `None`: the page starts with the first item in its order.
    pub after: Option<ItemAfter>,
    /// Order of the items.
    pub order: ListOrder,
    /// Maximum number of items, up to [`MAX_PAGE_ENTRIES`].
    pub limit: usize,
}

impl ItemQuery {
    /// Creates a query for the object's first items.
    pub fn new(key: ObjectKey, limit: usize) -> Self {
        Self { key, after: None, order: ListOrder::Ascending, limit }
    }
}
