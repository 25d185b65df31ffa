//! Which objects and items are read, in pages of bounded size.

use super::{ObjectKey, ObjectKind};

/// Most objects or items of a page.
pub const MAX_PAGE_ENTRIES: usize = 1_000;
/// Most bytes of a page's bodies, unless its first entry alone has more.
pub const MAX_PAGE_BYTES: u64 = 8 << 20;

/// Order of a page.
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
    /// Their kind.
    pub kind: ObjectKind,
    /// Only those with this parent.
    pub parent: Option<String>,
    /// The page begins after this object. [`StoreError::UnknownObject`] if there is none of this id.
    ///
    /// [`StoreError::UnknownObject`]: crate::StoreError::UnknownObject
    pub after: Option<String>,
    /// Their order.
    pub order: ListOrder,
    /// Most objects of the page, up to [`MAX_PAGE_ENTRIES`].
    pub limit: usize,
}

impl ObjectQuery {
    /// Asks for the tenant's oldest objects of a kind.
    pub fn new(tenant: impl Into<String>, kind: ObjectKind, limit: usize) -> Self {
        let (parent, after, order) = (None, None, ListOrder::Ascending);
        Self { tenant: tenant.into(), kind, parent, after, order, limit }
    }
}

/// Where a page of items begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemAfter {
    /// After the item of this number, which may be absent.
    Number(u64),
    /// After the item of this id. [`StoreError::UnknownObject`] if there is none.
    ///
    /// [`StoreError::UnknownObject`]: crate::StoreError::UnknownObject
    Id(String),
}

/// A page of an object's items. [`StoreError::UnknownObject`] if there is no such object.
///
/// [`StoreError::UnknownObject`]: crate::StoreError::UnknownObject
#[derive(Debug, Clone)]
pub struct ItemQuery {
    /// Object of the items.
    pub key: ObjectKey,
    /// Where the page begins; `None` for the first item in its order.
    pub after: Option<ItemAfter>,
    /// Their order.
    pub order: ListOrder,
    /// Most items of the page, up to [`MAX_PAGE_ENTRIES`].
    pub limit: usize,
}

impl ItemQuery {
    /// Asks for the object's first items.
    pub fn new(key: ObjectKey, limit: usize) -> Self {
        Self { key, after: None, order: ListOrder::Ascending, limit }
    }
}
