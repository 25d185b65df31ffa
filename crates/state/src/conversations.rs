//! Conversations: ordered items, to which responses are added. Does not know how answers are generated.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use throng_api::ApiError;
use throng_api::responses::Item;
use throng_store::{
    ItemAfter, ItemQuery, ListOrder, NewItem, ObjectKey, ObjectKind, ObjectWrite, Store, StoreError,
    StoredObject, now_unix_s,
};

use crate::fault::{Missing, api_error};

/// Maximum number of items of a conversation in a prompt.
const MAX_ITEMS: usize = 10_000;
/// Maximum bytes of the items of a conversation in a prompt.
const MAX_BYTES: usize = 32 << 20;
const ITEMS_PER_PAGE: usize = 500;

/// The conversations of all tenants.
#[derive(Debug, Clone)]
pub struct Conversations {
    store: Arc<dyn Store>,
}

/// A kept conversation.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// Id of the conversation.
    pub id: String,
    /// Time of its creation.
    pub created_unix_s: u64,
    /// Metadata from the client.
    pub metadata: Box<RawValue>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Body {
    metadata: Box<RawValue>,
}

/// A page of items.
#[derive(Debug, Clone, Default)]
pub struct ItemPage {
    /// Items of the page.
    pub items: Vec<Item>,
    /// Whether there are more items.
    pub has_more: bool,
}

/// Query of a page.
#[derive(Debug, Clone)]
pub struct PageQuery {
    /// Id of the item after which the page begins.
    pub after: Option<String>,
    /// Maximum number of items.
    pub limit: usize,
    /// Whether the newest items are first.
    pub is_descending: bool,
}

impl ItemPage {
    /// Selects a page of a list that is in memory.
    ///
    /// # Errors
    /// 404 if the list does not have the item after which the page begins.
    pub fn of(mut items: Vec<Item>, range: &PageQuery) -> Result<Self, ApiError> {
        if range.is_descending {
            items.reverse();
        }
        if let Some(after) = &range.after {
            let place = items.iter().position(|item| item.id() == after);
            let place = place.ok_or_else(|| ApiError::item_not_found(after, "after"))?;
            items.drain(..=place);
        }
        let has_more = items.len() > range.limit;
        items.truncate(range.limit);
        Ok(Self { items, has_more })
    }
}

impl Conversations {
    /// Keeps conversations in `store`.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    fn key(tenant: &str, id: &str) -> ObjectKey {
        ObjectKey::new(tenant, ObjectKind::Conversation, id)
    }

    /// Write that adds items to a conversation; items that it has already stay unchanged.
    pub(crate) fn appending<'i>(
        tenant: &str,
        id: &str,
        items: impl Iterator<Item = &'i Item>,
    ) -> Result<ObjectWrite, ApiError> {
        let item = |item: &Item| {
            let body = serde_json::to_vec(item).map_err(|_| ApiError::internal_error("unknown"))?;
            Ok(NewItem { id: item.id().to_owned(), body })
        };
        let items: Result<Vec<_>, ApiError> = items.map(item).collect();
        Ok(ObjectWrite::append(Self::key(tenant, id), items?))
    }

    /// Creates a conversation with these items.
    ///
    /// # Errors
    /// 503 when the store does not answer.
    pub async fn create(
        &self,
        tenant: &str,
        metadata: Box<RawValue>,
        mut items: Vec<Item>,
    ) -> Result<Conversation, ApiError> {
        let id = format!("conv_{}", uuid::Uuid::new_v4().simple());
        name(&mut items);
        let created_unix_s = now_unix_s();
        let body = Body { metadata: metadata.clone() };
        let body = serde_json::to_vec(&body).map_err(|_| ApiError::internal_error("unknown"))?;
        let items = Self::appending(tenant, &id, items.iter())?.items;
        let create = ObjectWrite::create(Self::key(tenant, &id), created_unix_s, body).with_items(items);
        self.store.write_objects(&[create]).await.map_err(api_error)?;
        Ok(Conversation { id, created_unix_s, metadata })
    }

    async fn object(&self, tenant: &str, id: &str) -> Result<(StoredObject, Body), ApiError> {
        let found = self.store.object(&Self::key(tenant, id)).await.map_err(api_error)?;
        let readable = found.and_then(|object| {
            let body = serde_json::from_slice(&object.body).ok()?;
            Some((object, body))
        });
        readable.ok_or_else(|| ApiError::conversation_not_found(id))
    }

    /// Reads a conversation.
    ///
    /// # Errors
    /// 404 if it is not kept, 503 when the store does not answer.
    pub async fn get(&self, tenant: &str, id: &str) -> Result<Conversation, ApiError> {
        let (object, body) = self.object(tenant, id).await?;
        let created_unix_s = object.created_unix_s;
        Ok(Conversation { id: object.key.id, created_unix_s, metadata: body.metadata })
    }

    /// Replaces the client's metadata of a conversation.
    ///
    /// # Errors
    /// 404 if it is not kept, 503 when the store does not answer.
    pub async fn update(
        &self,
        tenant: &str,
        id: &str,
        metadata: Box<RawValue>,
    ) -> Result<Conversation, ApiError> {
        loop {
            let (object, _) = self.object(tenant, id).await?;
            let body = serde_json::to_vec(&Body { metadata: metadata.clone() })
                .map_err(|_| ApiError::internal_error("unknown"))?;
            match self.store.write_objects(&[ObjectWrite::replace(&object, body)]).await {
                Ok(_) => {
                    let created_unix_s = object.created_unix_s;
                    return Ok(Conversation { id: object.key.id, created_unix_s, metadata });
                }
                Err(StoreError::Conflict) => {}
                Err(error) => return Err(api_error(error)),
            }
        }
    }

    /// Deletes a conversation with its items.
    ///
    /// # Errors
    /// 404 if it is not kept, 503 when the store does not answer.
    pub async fn delete(&self, tenant: &str, id: &str) -> Result<(), ApiError> {
        let was_there = self.store.delete_object(&Self::key(tenant, id)).await.map_err(api_error)?;
        if was_there { Ok(()) } else { Err(ApiError::conversation_not_found(id)) }
    }

    /// Adds items, and returns them with their ids.
    ///
    /// # Errors
    /// 404 if the conversation is not kept, 503 when the store does not answer.
    pub async fn add(&self, tenant: &str, id: &str, mut items: Vec<Item>) -> Result<Vec<Item>, ApiError> {
        name(&mut items);
        let append = Self::appending(tenant, id, items.iter())?;
        self.store
            .write_objects(&[append])
            .await
            .map_err(|error| missing(error, Missing::Conversation(id)))?;
        Ok(items)
    }

    /// Reads a page of items.
    ///
    /// # Errors
    /// 404 if the conversation or the item is not kept, 503 when the store does not answer.
    pub async fn items(&self, tenant: &str, id: &str, range: &PageQuery) -> Result<ItemPage, ApiError> {
        self.object(tenant, id).await?;
        let query = ItemQuery {
            after: range.after.clone().map(ItemAfter::Id),
            order: if range.is_descending { ListOrder::Descending } else { ListOrder::Ascending },
            ..ItemQuery::new(Self::key(tenant, id), range.limit + 1)
        };
        let not_found = |error| missing(error, Missing::Item(range.after.as_deref().unwrap_or_default()));
        let found = self.store.items(&query).await.map_err(not_found)?;
        let has_more = found.len() > range.limit;
        // One that cannot be read does not hold up the others.
        let items = found.iter().take(range.limit).filter_map(|item| serde_json::from_slice(&item.body).ok());
        Ok(ItemPage { items: items.collect(), has_more })
    }

    /// Reads all items, for a prompt.
    ///
    /// # Errors
    /// 404 if the conversation is not kept, 400 if it is too long, 503 when the store does not answer.
    pub async fn all_items(
        &self,
        tenant: &str,
        id: &str,
        n_bytes: &mut usize,
    ) -> Result<Vec<Item>, ApiError> {
        self.object(tenant, id).await?;
        let mut query = ItemQuery::new(Self::key(tenant, id), ITEMS_PER_PAGE);
        let mut items = Vec::new();
        loop {
            let page = self.store.items(&query).await;
            let page = page.map_err(|error| missing(error, Missing::Conversation(id)))?;
            let Some(last) = page.last() else { return Ok(items) };
            query.after = Some(ItemAfter::Number(last.number));
            items.extend(page.iter().filter_map(|item| serde_json::from_slice::<Item>(&item.body).ok()));
            *n_bytes += page.iter().map(|item| item.body.len()).sum::<usize>();
            if items.len() > MAX_ITEMS || *n_bytes > MAX_BYTES {
                return Err(ApiError::array_above_max_length("conversation", MAX_ITEMS));
            }
        }
    }

    /// Reads one item.
    ///
    /// # Errors
    /// 404 if the conversation or the item is not kept, 503 when the store does not answer.
    pub async fn item(&self, tenant: &str, id: &str, item_id: &str) -> Result<Item, ApiError> {
        self.object(tenant, id).await?;
        let found = self.store.item(&Self::key(tenant, id), item_id).await;
        let found = found.map_err(|error| missing(error, Missing::Conversation(id)))?;
        let item = found.and_then(|item| serde_json::from_slice(&item.body).ok());
        item.ok_or_else(|| ApiError::item_not_found(item_id, "item_id"))
    }

    /// Deletes one item.
    ///
    /// # Errors
    /// 404 if the conversation or the item is not kept, 503 when the store does not answer.
    pub async fn delete_item(&self, tenant: &str, id: &str, item_id: &str) -> Result<Conversation, ApiError> {
        let conversation = self.get(tenant, id).await?;
        let was_there = self.store.delete_item(&Self::key(tenant, id), item_id).await.map_err(api_error)?;
        if was_there { Ok(conversation) } else { Err(ApiError::item_not_found(item_id, "item_id")) }
    }
}

fn missing(error: StoreError, what: Missing<'_>) -> ApiError {
    match error {
        StoreError::UnknownObject => what.error(),
        error => api_error(error),
    }
}

/// Gives ids to items without one.
fn name(items: &mut [Item]) {
    for item in items.iter_mut().filter(|item| item.id().is_empty()) {
        item.set_id(format!("{}_{}", item.prefix(), uuid::Uuid::new_v4().simple()));
    }
}
