//! Objects that a server keeps for its tenants between requests: responses, conversations, files, batches.
//! An object has a small body, which is replaced as a whole, and items, which are appended and numbered. What
//! bodies and items mean is the caller's. Does not know SQL.

mod query;
mod write;

use std::fmt::Debug;

pub use query::{ItemAfter, ItemQuery, ListOrder, MAX_PAGE_BYTES, MAX_PAGE_ENTRIES, ObjectQuery};
pub use write::{ItemPlace, NewItem, ObjectChange, ObjectWrite, Quota, Written};

use crate::answers::ClaimBeat;
use crate::future::StoreFuture;

/// Largest body of an object or an item in bytes.
pub const MAX_OBJECT_BYTES: usize = 32 << 20;
/// Longest id of an object or an item, and longest name of a tenant, in bytes.
pub const MAX_OBJECT_ID_BYTES: usize = 512;
/// Most objects of a tenant, unless its quota says otherwise.
pub const MAX_TENANT_OBJECTS: u64 = 100_000;
/// Most bytes of a tenant's objects with their items, unless its quota says otherwise.
pub const MAX_TENANT_BYTES: u64 = 4 << 30;
/// Bytes that each object and item counts for beside its body.
pub const ENTRY_BYTES: u64 = 128;

/// Kind of an object. Ids are unique within a kind and a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// An answer of the Responses API with the items of its input and output.
    Response,
    /// A conversation with its items.
    Conversation,
    /// A file; its content is its items, in order.
    File,
    /// A batch; its results are its items.
    Batch,
    /// A batch of Anthropic's API; its results are its items.
    MessageBatch,
    /// The requests of a batch that came without a file; its content is its items, in order.
    BatchInput,
}

impl ObjectKind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Response, Self::Conversation, Self::File, Self::Batch, Self::MessageBatch, Self::BatchInput];

    /// Its name in databases and exports.
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

    /// The kind of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Name of an object. Every statement has the tenant in it: another tenant's id finds nothing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Tenant of the object. The name says what it is (project, key, token), as those of caches do.
    pub tenant: String,
    /// Its kind.
    pub kind: ObjectKind,
    /// Its id.
    pub id: String,
}

impl ObjectKey {
    /// Makes the key of an object.
    pub fn new(tenant: impl Into<String>, kind: ObjectKind, id: impl Into<String>) -> Self {
        Self { tenant: tenant.into(), kind, id: id.into() }
    }
}

/// An object as it is in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// Its name.
    pub key: ObjectKey,
    /// Rises with each new object of the database, and is never given twice.
    pub number: u64,
    /// Id of the object that it follows or belongs to.
    pub parent: Option<String>,
    /// Rises with each change of its body, from 1.
    pub version: u64,
    /// Time of its creation.
    pub created_unix_s: u64,
    /// When it is forgotten; `None` for never. It is not found from then on.
    pub expires_unix_s: Option<u64>,
    /// Whether some process has work to do for it, see [`ObjectStore::pending_objects`].
    pub is_pending: bool,
    /// Items that were appended so far, deleted ones included.
    pub n_items: u64,
    /// Bytes that it and its items count for.
    pub n_bytes: u64,
    /// Its body.
    pub body: Vec<u8>,
}

/// An item of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredItem {
    /// Its place among the object's items, from 0.
    pub number: u64,
    /// Its id, unique within the object.
    pub id: String,
    /// Its body.
    pub body: Vec<u8>,
}

/// Result of a claim to do the work of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lease {
    /// The caller has the lease, and nobody else.
    Granted,
    /// Somebody else has it.
    Taken(ClaimBeat),
    /// There is no such object.
    Missing,
}

/// An object that some process has work to do for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingObject {
    /// Its name.
    pub key: ObjectKey,
    /// Its number, see [`StoredObject::number`].
    pub number: u64,
    /// The last sign of life of its owner, if somebody has claimed it.
    pub beat: Option<ClaimBeat>,
}

/// Objects and bytes that a tenant has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObjectUsage {
    /// Objects.
    pub n_objects: u64,
    /// Bytes of objects and items, with [`ENTRY_BYTES`] for each.
    pub n_bytes: u64,
}

/// Kept objects in a database. An object that has expired is not found by any method.
pub trait ObjectStore: Debug + Send + Sync {
    /// Does all of these writes, which are of one tenant, or none of them.
    ///
    /// [`StoreError::Conflict`] for an object that is there already or has another version,
    /// [`StoreError::UnknownObject`] for one that is not there, [`StoreError::LeaseLost`] where the owner
    /// that a write names has no lease, and [`StoreError::Full`] beyond the quota.
    ///
    /// [`StoreError::Conflict`]: crate::StoreError::Conflict
    /// [`StoreError::UnknownObject`]: crate::StoreError::UnknownObject
    /// [`StoreError::LeaseLost`]: crate::StoreError::LeaseLost
    /// [`StoreError::Full`]: crate::StoreError::Full
    fn write_objects<'a>(&'a self, writes: &'a [ObjectWrite]) -> StoreFuture<'a, Vec<Written>>;
    /// Reads an object.
    fn object<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, Option<StoredObject>>;
    /// Reads a page of a tenant's objects of one kind, in the order of their creation.
    fn objects<'a>(&'a self, query: &'a ObjectQuery) -> StoreFuture<'a, Vec<StoredObject>>;
    /// Reads the versions of at most [`MAX_PAGE_ENTRIES`] objects of one tenant and kind, in the order of
    /// `ids`: `None` for one that is not there.
    fn object_versions<'a>(
        &'a self,
        tenant: &'a str,
        kind: ObjectKind,
        ids: &'a [&'a str],
    ) -> StoreFuture<'a, Vec<Option<u64>>>;
    /// Deletes an object with its items. Whether it was there.
    fn delete_object<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, bool>;
    /// Reads a page of an object's items: at most [`MAX_PAGE_BYTES`], or one item. An empty page is the end.
    fn items<'a>(&'a self, query: &'a ItemQuery) -> StoreFuture<'a, Vec<StoredItem>>;
    /// Reads numbers and ids of a page of an object's items.
    fn item_ids<'a>(&'a self, query: &'a ItemQuery) -> StoreFuture<'a, Vec<(u64, String)>>;
    /// Reads one item.
    fn item<'a>(&'a self, key: &'a ObjectKey, id: &'a str) -> StoreFuture<'a, Option<StoredItem>>;
    /// Deletes one item. Whether it was there. Its number is not given again.
    fn delete_item<'a>(&'a self, key: &'a ObjectKey, id: &'a str) -> StoreFuture<'a, bool>;
    /// Claims the work of an object that nobody has claimed, or whose owner has given no sign of life since
    /// `dead`. Each attempt has an owner's name of its own.
    fn claim_object<'a>(
        &'a self,
        key: &'a ObjectKey,
        owner: &'a str,
        dead: Option<&'a ClaimBeat>,
    ) -> StoreFuture<'a, Lease>;
    /// Gives a sign of life of an owner. Whether it still has the lease.
    fn beat_object<'a>(&'a self, key: &'a ObjectKey, owner: &'a str) -> StoreFuture<'a, bool>;
    /// Gives a lease up, if the owner still has it.
    fn release_object<'a>(&'a self, key: &'a ObjectKey, owner: &'a str) -> StoreFuture<'a, ()>;
    /// Lists objects of a kind, of all tenants, that wait for work or are worked on, above this number.
    fn pending_objects(
        &self,
        kind: ObjectKind,
        after: u64,
        limit: usize,
    ) -> StoreFuture<'_, Vec<PendingObject>>;
    /// Deletes some of the objects that have expired. How many; 0 when none is left.
    fn forget_objects(&self) -> StoreFuture<'_, u64>;
    /// Reads a page of all objects of a tenant above this number, in the order of their numbers.
    fn export_objects<'a>(
        &'a self,
        tenant: &'a str,
        after: u64,
        limit: usize,
    ) -> StoreFuture<'a, Vec<StoredObject>>;
    /// Deletes some of a tenant's objects. How many; 0 when none is left.
    fn delete_objects<'a>(&'a self, tenant: &'a str) -> StoreFuture<'a, u64>;
    /// Counts what a tenant has.
    fn object_usage<'a>(&'a self, tenant: &'a str) -> StoreFuture<'a, ObjectUsage>;
}
