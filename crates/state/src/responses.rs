//! Kept responses: what was asked and answered, as items, and what goes on from them. Does not know how
//! answers are generated.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use throng_api::ApiError;
use throng_api::responses::{Ids, Item, Kept, Wish};
use throng_store::{
    ClaimBeat, ItemAfter, ItemQuery, Lease, ListOrder, NewItem, ObjectKey, ObjectKind, ObjectWrite,
    PendingObject, Store, StoreError, StoredItem, StoredObject,
};

use crate::conversations::Conversations;
use crate::fault::{Missing, api_error};
use crate::now_unix_s;

/// Most turns that a response goes back.
const MAX_TURNS: usize = 1_000;
/// Most bytes of the kept turns of a conversation.
const MAX_HISTORY_BYTES: usize = 32 << 20;
/// Most references to kept items in one input.
const MAX_REFERENCES: usize = 1_000;
/// Most events that are read at a time.
const EVENTS_PER_PAGE: usize = 500;

/// The responses of all tenants.
#[derive(Debug, Clone)]
pub struct Responses {
    store: Arc<dyn Store>,
    conversations: Conversations,
    retention: Option<Duration>,
}

/// A kept response.
#[derive(Debug, Serialize, Deserialize)]
pub struct ResponseRecord {
    /// The response object, as its client was told it.
    pub response: Box<RawValue>,
    /// The items of its input, references resolved.
    pub input: Vec<Item>,
    /// The items of its output.
    pub output: Vec<Item>,
    /// The response that it went on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// The conversation that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Its request, while it is being answered without its client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<KeptRequest>,
}

/// A request that is being answered without its client, so that any process can answer it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KeptRequest {
    /// Its body.
    pub body: String,
    /// The key of its random numbers: whoever answers it gives the same answer.
    pub seed: Option<i64>,
}

impl ResponseRecord {
    /// The items before the response of its conversation, with its own.
    fn items(self) -> impl Iterator<Item = Item> {
        self.input.into_iter().chain(self.output)
    }
}

/// A response that is answered without its client.
#[derive(Debug, Clone)]
pub struct BackgroundResponse {
    key: ObjectKey,
    owner: String,
    version: u64,
}

/// A response whose process has died, claimed to be answered.
#[derive(Debug)]
pub struct Orphan {
    /// The claim.
    pub response: BackgroundResponse,
    /// Its request.
    pub request: KeptRequest,
    /// The model that its process has chosen.
    pub model: String,
    /// Ids of its calls that its client may have seen.
    pub call_ids: Vec<String>,
}

/// Events of a response, in order.
#[derive(Debug, Default)]
pub struct EventPage {
    /// The events as they are sent.
    pub events: Vec<Vec<u8>>,
    /// The number of the last one, if there is one.
    pub last: Option<u64>,
    /// Whether more will come.
    pub is_running: bool,
}

impl Responses {
    /// Keeps responses in `store` for `retention`; without one for ever.
    pub fn new(store: Arc<dyn Store>, retention: Option<Duration>) -> Self {
        let conversations = Conversations::new(store.clone());
        Self { store, conversations, retention }
    }

    /// The conversations beside them.
    pub fn conversations(&self) -> &Conversations {
        &self.conversations
    }

    fn key(tenant: &str, id: &str) -> ObjectKey {
        ObjectKey::new(tenant, ObjectKind::Response, id)
    }

    fn expires(&self) -> Option<u64> {
        self.retention.map(|retention| now_unix_s().saturating_add(retention.as_secs()))
    }

    async fn object(
        &self,
        tenant: &str,
        id: &str,
    ) -> Result<Option<(StoredObject, ResponseRecord)>, ApiError> {
        let Some(mut object) = self.store.object(&Self::key(tenant, id)).await.map_err(api_error)? else {
            return Ok(None);
        };
        // One that cannot be read is as good as none.
        let record = serde_json::from_slice(&std::mem::take(&mut object.body)).ok();
        Ok(record.map(|record| (object, record)))
    }

    /// What is kept of the conversation that a request goes on with, and how many bytes that has.
    ///
    /// # Errors
    /// 4xx for what is not kept for this tenant, 503 where the store does not answer.
    pub async fn gather(&self, tenant: &str, wish: &Wish) -> Result<(Kept, usize), ApiError> {
        let mut kept = Kept { is_storing: wish.store.unwrap_or(true), ..Kept::default() };
        let mut n_bytes = 0;
        if let Some(previous) = &wish.previous {
            kept.history = self.history(tenant, previous, &mut n_bytes).await?;
        }
        if let Some(conversation) = &wish.conversation {
            kept.history = self.conversations.all_items(tenant, conversation, &mut n_bytes).await?;
        }
        if wish.references.len() > MAX_REFERENCES {
            return Err(ApiError::array_above_max_length("input", MAX_REFERENCES));
        }
        let mut looked_at = BTreeSet::new();
        for id in &wish.references {
            if is_known_in(&kept.history, id) || is_known_in(&kept.referenced, id) {
                continue;
            }
            let not_found = || ApiError::item_not_found(id, "input");
            let response = Ids::response_of(id).ok_or_else(not_found)?;
            if !looked_at.insert(response.clone()) {
                return Err(not_found());
            }
            let (object, record) = self.object(tenant, &response).await?.ok_or_else(not_found)?;
            n_bytes += object.n_bytes as usize;
            if n_bytes > MAX_HISTORY_BYTES {
                return Err(ApiError::array_above_max_length("input", kept.referenced.len()));
            }
            kept.referenced.extend(record.items());
            if !is_known_in(&kept.referenced, id) {
                return Err(not_found());
            }
        }
        if kept.is_storing {
            kept.ids = Some(Ids::new());
        }
        if wish.is_background {
            kept.seed = Some(i64::from(fastrand::u32(..)));
        }
        Ok((kept, n_bytes))
    }

    /// The items of a response and of all before it.
    async fn history(
        &self,
        tenant: &str,
        previous: &str,
        n_bytes: &mut usize,
    ) -> Result<Vec<Item>, ApiError> {
        let not_found = || ApiError::previous_response_not_found(previous);
        let (mut turns, mut next) = (Vec::new(), Some(previous.to_owned()));
        while let Some(id) = next.take() {
            let (object, record) = self.object(tenant, &id).await?.ok_or_else(not_found)?;
            *n_bytes += object.n_bytes as usize;
            if turns.len() == MAX_TURNS || *n_bytes > MAX_HISTORY_BYTES {
                let reason = "The kept conversation is too long; use /v1/responses/compact.";
                return Err(ApiError::invalid_value("previous_response_id", reason));
            }
            if object.is_pending {
                let reason = "The previous response is still in progress.";
                return Err(ApiError::invalid_value("previous_response_id", reason));
            }
            match (&record.conversation, &record.previous) {
                (Some(conversation), _) => {
                    let mut items = self.conversations.all_items(tenant, conversation, n_bytes).await?;
                    let first = record.input.first().or(record.output.first()).map(Item::id);
                    let place = items.iter().position(|item| Some(item.id()) == first);
                    items.truncate(place.unwrap_or(items.len()));
                    turns.push(record.items().collect());
                    turns.push(items);
                }
                (None, earlier) => {
                    next.clone_from(earlier);
                    turns.push(record.items().collect::<Vec<_>>());
                }
            }
        }
        Ok(turns.into_iter().rev().flatten().collect())
    }

    /// Keeps a response with what it was asked, and adds its items to its conversation: both or nothing.
    ///
    /// # Errors
    /// 404 for a conversation that was deleted meanwhile, 503 where the store does not answer.
    pub async fn keep(&self, tenant: &str, id: &str, record: &ResponseRecord) -> Result<(), ApiError> {
        let create = ObjectWrite::create(Self::key(tenant, id), now_unix_s(), body_of(record)?)
            .with_parent(record.previous.clone())
            .expiring(self.expires());
        self.write(tenant, create, record).await.map(drop)
    }

    async fn write(
        &self,
        tenant: &str,
        write: ObjectWrite,
        record: &ResponseRecord,
    ) -> Result<u64, ApiError> {
        let mut writes = vec![write];
        if let Some(conversation) = &record.conversation {
            let items = record.input.iter().chain(&record.output);
            writes.push(Conversations::appending(tenant, conversation, items)?);
        }
        let written =
            self.store.write_objects(&writes).await.map_err(|error| match (error, &record.conversation) {
                (StoreError::UnknownObject, Some(conversation)) => {
                    ApiError::conversation_not_found(conversation)
                }
                (error, _) => api_error(error),
            })?;
        Ok(written.first().map_or(1, |written| written.version))
    }

    /// Keeps a response that is about to be answered without its client. The caller has the work of it.
    ///
    /// # Errors
    /// 503 where the store does not answer.
    pub async fn begin(
        &self,
        tenant: &str,
        id: &str,
        record: &ResponseRecord,
    ) -> Result<BackgroundResponse, ApiError> {
        let key = Self::key(tenant, id);
        let create = ObjectWrite::create(key.clone(), now_unix_s(), body_of(record)?)
            .with_parent(record.previous.clone())
            .expiring(self.expires())
            .pending(true);
        let written = self.store.write_objects(&[create]).await.map_err(api_error)?;
        let owner = uuid::Uuid::new_v4().simple().to_string();
        let version = written.first().map_or(1, |written| written.version);
        match self.store.claim_object(&key, &owner, None).await.map_err(api_error)? {
            Lease::Granted => Ok(BackgroundResponse { key, owner, version }),
            Lease::Taken(_) | Lease::Missing => Err(ApiError::response_not_found(id)),
        }
    }

    /// Responses that wait for a process, of all tenants.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn pending(&self, after: u64, limit: usize) -> Result<Vec<PendingObject>, StoreError> {
        self.store.pending_objects(ObjectKind::Response, after, limit).await
    }

    /// Claims a response that nobody answers; `dead` is the last sign of life of who did.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn adopt(
        &self,
        key: &ObjectKey,
        dead: Option<&ClaimBeat>,
    ) -> Result<Option<Orphan>, StoreError> {
        let owner = uuid::Uuid::new_v4().simple().to_string();
        if self.store.claim_object(key, &owner, dead).await? != Lease::Granted {
            return Ok(None);
        }
        let Some(object) = self.store.object(key).await?.filter(|object| object.is_pending) else {
            return Ok(None);
        };
        let Ok(record) = serde_json::from_slice::<ResponseRecord>(&object.body) else { return Ok(None) };
        let told: Told = serde_json::from_str(record.response.get()).unwrap_or_default();
        let mut call_ids = Vec::new();
        let mut query = ItemQuery::new(key.clone(), EVENTS_PER_PAGE);
        loop {
            let page = self.store.items(&query).await?;
            let Some(last) = page.last() else { break };
            query.after = Some(ItemAfter::Number(last.number));
            call_ids.extend(page.iter().filter_map(|event| call_id_of(&event.body)));
        }
        let response = BackgroundResponse { key: key.clone(), owner, version: object.version };
        let orphan = record.request.map(|request| Orphan { response, request, model: told.model, call_ids });
        Ok(orphan)
    }

    /// Appends events to a response, whose first one has the number `first`. Whether it still is to be
    /// answered by this owner.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn append_events(
        &self,
        response: &BackgroundResponse,
        first: u64,
        events: Vec<Vec<u8>>,
    ) -> Result<bool, StoreError> {
        let numbered = events.into_iter().zip(first..);
        let items = numbered.map(|(body, number)| NewItem { id: number.to_string(), body }).collect();
        let append = ObjectWrite::append(response.key.clone(), items).owned_by(&response.owner);
        match self.store.write_objects(&[append]).await {
            Ok(_) => Ok(true),
            Err(StoreError::LeaseLost | StoreError::UnknownObject) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives a sign of life, and says whether the response still is to be answered by this owner.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn beat(&self, response: &BackgroundResponse) -> Result<bool, StoreError> {
        self.store.beat_object(&response.key, &response.owner).await
    }

    /// Whether nobody has cancelled or deleted a response.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn is_pending(&self, response: &BackgroundResponse) -> Result<bool, StoreError> {
        Ok(self.store.object(&response.key).await?.is_some_and(|object| object.is_pending))
    }

    /// Ends a response that was answered without its client, with its last events.
    ///
    /// # Errors
    /// 4xx where it was cancelled or deleted, 503 where the store does not answer.
    pub async fn finish(
        &self,
        response: &BackgroundResponse,
        first: u64,
        events: Vec<Vec<u8>>,
        record: &ResponseRecord,
    ) -> Result<(), ApiError> {
        let found = self.store.object(&response.key).await.map_err(api_error)?;
        let object = found.filter(|object| object.version == response.version);
        let object = object.ok_or_else(|| ApiError::response_not_found(&response.key.id))?;
        let numbered = events.into_iter().zip(first..);
        let items = numbered.map(|(body, number)| NewItem { id: number.to_string(), body }).collect();
        let replace = ObjectWrite::replace(&object, body_of(record)?)
            .pending(false)
            .with_items(items)
            .owned_by(&response.owner);
        self.write(&response.key.tenant, replace, record).await?;
        // The work is done; that nobody has it any more is a courtesy.
        drop(self.store.release_object(&response.key, &response.owner).await);
        Ok(())
    }

    /// Ends a response that cannot be answered.
    ///
    /// # Errors
    /// 4xx where it was cancelled or deleted, 503 where the store does not answer.
    pub async fn fail(&self, response: &BackgroundResponse, error: &ApiError) -> Result<(), ApiError> {
        let (tenant, id) = (response.tenant(), response.id());
        let (object, mut record) =
            self.object(tenant, id).await?.ok_or_else(|| ApiError::response_not_found(id))?;
        let fault = serde_json::json!({"code": "server_error", "message": error.message()});
        record.response = changed(&record.response, [("status", "failed".into()), ("error", fault)]);
        record.request = None;
        let replace =
            ObjectWrite::replace(&object, body_of(&record)?).pending(false).owned_by(&response.owner);
        self.store.write_objects(&[replace]).await.map(drop).map_err(api_error)
    }

    /// Cancels a response that is answered without its client; one that has ended stays as it is.
    ///
    /// # Errors
    /// 404 for one that is not kept, 503 where the store does not answer.
    pub async fn cancel(&self, tenant: &str, id: &str) -> Result<ResponseRecord, ApiError> {
        loop {
            let found = self.object(tenant, id).await?;
            let (object, mut record) = found.ok_or_else(|| ApiError::response_not_found(id))?;
            if !object.is_pending {
                return Ok(record);
            }
            record.response = changed(&record.response, [("status", "cancelled".into())]);
            record.request = None;
            let replace = ObjectWrite::replace(&object, body_of(&record)?).pending(false);
            match self.store.write_objects(&[replace]).await {
                Ok(_) => return Ok(record),
                Err(StoreError::Conflict) => {}
                Err(error) => return Err(api_error(error)),
            }
        }
    }

    /// A kept response.
    ///
    /// # Errors
    /// 404 for one that is not kept, 503 where the store does not answer.
    pub async fn get(&self, tenant: &str, id: &str) -> Result<ResponseRecord, ApiError> {
        let found = self.object(tenant, id).await?;
        found.map(|(_, record)| record).ok_or_else(|| ApiError::response_not_found(id))
    }

    /// Deletes a response with its items and events.
    ///
    /// # Errors
    /// 404 for one that is not kept, 503 where the store does not answer.
    pub async fn delete(&self, tenant: &str, id: &str) -> Result<(), ApiError> {
        let was_there = self.store.delete_object(&Self::key(tenant, id)).await.map_err(api_error)?;
        if was_there { Ok(()) } else { Err(ApiError::response_not_found(id)) }
    }

    /// The events of a response behind the one with the number `after`, some of them.
    ///
    /// # Errors
    /// 404 for a response that is not kept, 503 where the store does not answer.
    pub async fn events(&self, tenant: &str, id: &str, after: Option<u64>) -> Result<EventPage, ApiError> {
        let key = Self::key(tenant, id);
        let missing = || Missing::Response(id).error();
        // Looked at before the events: what comes between is found the next time.
        let object = self.store.object(&key).await.map_err(api_error)?.ok_or_else(missing)?;
        let query = ItemQuery {
            after: after.map(ItemAfter::Number),
            order: ListOrder::Ascending,
            ..ItemQuery::new(key, EVENTS_PER_PAGE)
        };
        let items: Vec<StoredItem> = self.store.items(&query).await.map_err(api_error)?;
        let last = items.last().map(|item| item.number);
        let is_running = object.is_pending || last.is_some_and(|last| last + 1 < object.n_items);
        Ok(EventPage { events: items.into_iter().map(|item| item.body).collect(), last, is_running })
    }
}

/// Whether an item of this id is among `items`.
fn is_known_in(items: &[Item], id: &str) -> bool {
    items.iter().any(|item| item.id() == id)
}

fn body_of(record: &ResponseRecord) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(record).map_err(|_| ApiError::internal_error("unknown"))
}

/// A response object with other members.
fn changed<const N: usize>(response: &RawValue, members: [(&str, Value); N]) -> Box<RawValue> {
    let changed = serde_json::from_str(response.get()).ok().and_then(|mut object: Value| {
        for (key, value) in members {
            object[key] = value;
        }
        serde_json::value::to_raw_value(&object).ok()
    });
    changed.unwrap_or_else(|| response.to_owned())
}

/// What of a response object is read again.
#[derive(Debug, Default, Deserialize)]
struct Told {
    model: String,
}

/// The id of the call that begins with an event, as it was sent.
fn call_id_of(event: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Added {
        item: Call,
    }
    #[derive(Deserialize)]
    struct Call {
        call_id: String,
    }
    let event = std::str::from_utf8(event).ok()?;
    let data = event.strip_prefix("event: response.output_item.added\ndata: ")?;
    Some(serde_json::from_str::<Added>(data.trim_end()).ok()?.item.call_id)
}

impl BackgroundResponse {
    /// The id of the response.
    pub fn id(&self) -> &str {
        &self.key.id
    }

    /// Whose response it is.
    pub fn tenant(&self) -> &str {
        &self.key.tenant
    }
}
