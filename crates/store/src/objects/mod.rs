//! Objects that a server stores for its tenants between requests: responses, conversations, files, batches.
//! An object has a small body, which is replaced as a whole, and numbered items, which are appended. Does
//! not interpret bodies and items. Does not know SQL.

mod query;
mod write;

use std::fmt::Debug;

pub use query::{ItemAfter, ItemQuery, ListOrder, MAX_PAGE_BYTES, MAX_PAGE_ENTRIES, ObjectQuery};
pub use write::{ItemPlace, NewItem, ObjectChange, ObjectWrite, Quota, Written};

use crate::answers::ClaimBeat;
use crate::future::StoreFuture;

/// Maximum bytes of the body of an object or an item.
pub const MAX_OBJECT_BYTES: usize = 32 << 20;
/// Maximum bytes of an object's or an item's id, and of a tenant's name.
pub const MAX_OBJECT_ID_BYTES: usize = 512;
/// Maximum number of a tenant's objects without a quota.
pub const MAX_TENANT_OBJECTS: u64 = 100_000;
/// Maximum bytes of a tenant's objects with their items, without a quota.
pub const MAX_TENANT_BYTES: u64 = 4 << 30;
/// Bytes that each object and item counts in addition to its body.
pub const ENTRY_BYTES: u64 = 128;

/// Kind of an object. Ids are unique within a kind and a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// An answer of the Responses API, with the items of its input and output.
    Response,
    /// A conversation with its items.
    Conversation,
    /// A file; its items are the parts of its content, in order.
    File,
    /// A batch; its results are its items.
    Batch,
    /// A batch of Anthropic's API; its results are its items.
    MessageBatch,
    /// The requests of a batch created without a file; its items are the parts of its content, in order.
    BatchInput,
}

impl ObjectKind {
    /// All kinds of objects.
    pub const ALL: [Self; 6] =
        [Self::Response, Self::Conversation, Self::File, Self::Batch, Self::MessageBatch, Self::BatchInput];

    /// Name in databases and exports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Response => "response",
            Self::Conversation => "conversation",
            Self::File => "file",
            Self::Batch => "batch",
            Self::MessageBatch => "message_batch",
            Self::BatchInput => "batch_input",
        }
    }

    /// The kind with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Key of an object. Every statement includes the tenant, so that an id of another tenant is not found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Tenant of the object, prefixed with its kind (project, key, token) like the tenants of caches.
    pub tenant: String,
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Id of the object.
    pub id: String,
}

impl ObjectKey {
    /// Creates a key.
    pub fn new(tenant: impl Into<String>, kind: ObjectKind, id: impl Into<String>) -> Self {
        Self { tenant: tenant.into(), kind, id: id.into() }
    }
}

/// An object as stored in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// Key of the object.
    pub key: ObjectKey,
    /// Number in the database's order of creation, never reused.
    pub number: u64,
    /// Id of the object that this one follows or belongs to.
    pub parent: Option<String>,
    /// Version of the body, counted from 1.
    pub version: u64,
    /// Creation time, in seconds since the epoch.
    pub created_unix_s: u64,
    /// Expiry, in seconds since the epoch; `None`: never. An expired object is not found.
    pub expires_unix_s: Option<u64>,
    /// Whether a process has work to do for the object, see [`ObjectStore::pending_objects`].
    pub is_pending: bool,
    /// Number of items appended so far, including deleted ones.
    pub n_items: u64,
    /// Counted bytes of the object and its items.
    pub n_bytes: u64,
    /// Body of the object.
    pub body: Vec<u8>,
}

/// The part of an object that changes with its items, at the cost of one small row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectState {
    /// Version of the body, see [`StoredObject::version`].
    pub version: u64,
    /// Whether a process has work to do for the object.
    pub is_pending: bool,
    /// Number of items appended so far, including deleted ones.
    pub n_items: u64,
}

/// An item of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredItem {
    /// Index among the object's items, from 0.
    pub number: u64,
    /// Id, unique within the object.
    pub id: String,
    /// Body of the object.
    pub body: Vec<u8>,
}

/// Result of claiming an object's work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lease {
    /// The caller has the lease, exclusively.
    Granted,
    /// Another owner has the lease.
    Taken(ClaimBeat),
    /// The object does not exist.
    Missing,
}

/// An object with work to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingObject {
    /// Key of the object.
    pub key: ObjectKey,
    /// Number of the object, see [`StoredObject::number`].
    pub number: u64,
    /// Last heartbeat of the lease's owner, if there is one.
    pub beat: Option<ClaimBeat>,
}

/// Stored objects and bytes of a tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObjectUsage {
    /// Number of objects.
    pub n_objects: u64,
    /// Bytes of objects and items, including [`ENTRY_BYTES`] for each.
    pub n_bytes: u64,
}

/// Objects in a database. No method finds an expired object.
pub trait ObjectStore: Debug + Send + Sync {
    /// Performs all of these writes of one tenant, or none of them.
    ///
    /// [`StoreError::Conflict`] for an object that already exists or has another version,
    /// [`StoreError::UnknownObject`] for one that does not exist, [`StoreError::LeaseLost`] if a write
    /// names an owner without the lease, and [`StoreError::Full`] beyond the quota.
    ///
    /// [`StoreError::Conflict`]: crate::StoreError::Conflict
    /// [`StoreError::UnknownObject`]: crate::StoreError::UnknownObject
    /// [`StoreError::LeaseLost`]: crate::StoreError::LeaseLost
    /// [`StoreError::Full`]: crate::StoreError::Full
    fn write_objects<'a>(&'a self, writes: &'a [ObjectWrite]) -> StoreFuture<'a, Vec<Written>>;
    /// Reads an object.
    fn object<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, Option<StoredObject>>;
    /// Reads the state of an object, without its body.
    fn object_state<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, Option<ObjectState>>;
    /// Reads a page of a tenant's objects of one kind, in the order of their creation.
    fn objects<'a>(&'a self, query: &'a ObjectQuery) -> StoreFuture<'a, Vec<StoredObject>>;
    /// Reads the versions of at most [`MAX_PAGE_ENTRIES`] objects of one tenant and kind, in the order of
    /// `ids`; `None` for an absent one.
    fn object_versions<'a>(
        &'a self,
        tenant: &'a str,
        kind: ObjectKind,
        ids: &'a [&'a str],
    ) -> StoreFuture<'a, Vec<Option<u64>>>;
    /// Deletes an object with its items. Returns whether it existed.
    fn delete_object<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, bool>;
    /// Reads a page of an object's items: at most [`MAX_PAGE_BYTES`], or one item. An empty page marks the
    /// end.
    fn items<'a>(&'a self, query: &'a ItemQuery) -> StoreFuture<'a, Vec<StoredItem>>;
    /// Reads a page of the numbers and ids of an object's items.
    fn item_ids<'a>(&'a self, query: &'a ItemQuery) -> StoreFuture<'a, Vec<(u64, String)>>;
    /// Reads one item.
    fn item<'a>(&'a self, key: &'a ObjectKey, id: &'a str) -> StoreFuture<'a, Option<StoredItem>>;
    /// Deletes one item. Returns whether it existed. Its number is not reused.
    fn delete_item<'a>(&'a self, key: &'a ObjectKey, id: &'a str) -> StoreFuture<'a, bool>;
    /// Claims the work of an object without an owner, or whose owner has not sent a heartbeat since `dead`.
    /// Each attempt has a unique owner's name.
    fn claim_object<'a>(
        &'a self,
        key: &'a ObjectKey,
        owner: &'a str,
        dead: Option<&'a ClaimBeat>,
    ) -> StoreFuture<'a, Lease>;
    /// Sends a heartbeat of an owner. Returns whether it still has the lease.
    fn beat_object<'a>(&'a self, key: &'a ObjectKey, owner: &'a str) -> StoreFuture<'a, bool>;
    /// Releases a lease, if the owner still has it.
    fn release_object<'a>(&'a self, key: &'a ObjectKey, owner: &'a str) -> StoreFuture<'a, ()>;
    /// Lists objects of a kind, of all tenants, with work to do or in progress, whose number is above
    /// `after`.
    fn pending_objects(
        &self,
        kind: ObjectKind,
        after: u64,
        limit: usize,
    ) -> StoreFuture<'_, Vec<PendingObject>>;
    /// Deletes some expired objects. Returns their number; 0 when none is left.
    fn forget_objects(&self) -> StoreFuture<'_, u64>;
    /// Reads a page of all objects of a tenant with numbers above `after`, in order.
    fn export_objects<'a>(
        &'a self,
        tenant: &'a str,
        after: u64,
        limit: usize,
    ) -> StoreFuture<'a, Vec<StoredObject>>;
    /// Deletes some of a tenant's objects. Returns their number; 0 when none is left.
    fn delete_objects<'a>(&'a self, tenant: &'a str) -> StoreFuture<'a, u64>;
    /// Counts a tenant's objects and bytes.
    fn object_usage<'a>(&'a self, tenant: &'a str) -> StoreFuture<'a, ObjectUsage>;
}
