//! Kept responses: inputs and outputs as items, and their continuation. Does not know how answers are
//! generated.

mod background;
mod recent;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use throng_api::ApiError;
use throng_api::responses::{History, Ids, Item, StateParameters, TokenTrail, TrailPart, TurnContext};
use throng_store::{ObjectKey, ObjectKind, ObjectWrite, Store, StoreError, StoredObject, now_unix_s};

pub use self::background::{BackgroundResponse, EventPage, KeptRequest, Orphan};
pub use self::recent::{KeptResponse, Past, RecentPasts};
use crate::conversations::Conversations;
use crate::fault::api_error;

/// Maximum number of turns before a response.
const MAX_TURNS: usize = 1_000;
/// Maximum bytes of the kept turns of a conversation.
const MAX_HISTORY_BYTES: usize = 32 << 20;
/// Number of responses that are read at a time.
const READS_AT_A_TIME: usize = 4;
/// Maximum number of references to kept items in one input.
const MAX_REFERENCES: usize = 1_000;

/// The responses of all tenants.
#[derive(Debug, Clone)]
pub struct Responses {
    pub(super) store: Arc<dyn Store>,
    conversations: Conversations,
    recent: Arc<RecentPasts>,
    retention: Option<Duration>,
}

/// A kept response.
#[derive(Debug, Serialize, Deserialize)]
pub struct ResponseRecord {
    /// Response object as sent to the client.
    pub response: Box<RawValue>,
    /// Items of the input, with references resolved.
    pub input: Vec<Item>,
    /// Output items of the response.
    pub output: Vec<Item>,
    /// Id of the response that it continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// Ids of the responses before that one, the oldest first, so that a turn reads them all at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ancestors: Vec<String>,
    /// Id of the conversation that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Its tokens, as the turn's part of its conversation's, in the written form of [`TrailPart`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trail: Option<String>,
    /// Request, while it is answered without its client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<KeptRequest>,
}

/// Kept part of the conversation that a request continues.
#[derive(Debug)]
pub struct Gathered {
    /// Context for parsing the request.
    pub context: TurnContext,
    /// Kept responses of the conversation, the oldest first; `None` if any of them is not kept.
    pub kept: Option<Vec<KeptResponse>>,
    /// Whether there are items of a conversation object.
    pub has_conversation: bool,
    /// Bytes of all objects read.
    pub n_bytes: usize,
}

impl Gathered {
    /// The conversation that a request continues if nothing is kept.
    ///
    /// # Errors
    /// 4xx for parameters that need a store.
    pub fn without_store(parameters: &StateParameters, past: Option<Past>) -> Result<Self, ApiError> {
        let without_past = match &past {
            Some(_) => StateParameters { previous: None, ..parameters.clone() },
            None => parameters.clone(),
        };
        without_past.check_without_store()?;
        let mut gathered = Self::new(TurnContext::default());
        gathered.begin_with(past);
        Ok(gathered)
    }

    fn new(context: TurnContext) -> Self {
        Self { context, kept: Some(Vec::new()), has_conversation: false, n_bytes: 0 }
    }

    fn begin_with(&mut self, past: Option<Past>) {
        let Some(past) = past else { return };
        (self.context.history, self.kept) = (past.history, past.kept);
        self.context.trail = Some(past.trail);
        self.has_conversation = past.has_conversation;
        self.n_bytes += past.n_bytes;
    }
}

impl ResponseRecord {
    /// The items before the response, followed by its own.
    fn items(self) -> impl Iterator<Item = Item> {
        self.input.into_iter().chain(self.output)
    }
}

impl Responses {
    /// Creates the store of responses, which are kept for `retention`, or for ever without it, and the recent
    /// ones in memory too.
    pub fn new(store: Arc<dyn Store>, recent: Arc<RecentPasts>, retention: Option<Duration>) -> Self {
        let conversations = Conversations::new(store.clone());
        Self { store, conversations, recent, retention }
    }

    /// The store of conversations.
    pub fn conversations(&self) -> &Conversations {
        &self.conversations
    }

    pub(super) fn key(tenant: &str, id: &str) -> ObjectKey {
        ObjectKey::new(tenant, ObjectKind::Response, id)
    }

    pub(super) fn expires(&self) -> Option<u64> {
        self.retention.map(|retention| now_unix_s().saturating_add(retention.as_secs()))
    }

    pub(super) async fn object(
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

    /// Reads the kept part of the conversation that a request continues; `past` is the part in memory.
    ///
    /// # Errors
    /// 4xx for objects that are not kept for this tenant, 503 when the store does not answer.
    pub async fn gather(
        &self,
        tenant: &str,
        parameters: &StateParameters,
        past: Option<Past>,
    ) -> Result<Gathered, ApiError> {
        let is_storing = parameters.store.unwrap_or(true);
        let trail = is_storing.then(Arc::default);
        let context = TurnContext { is_storing, trail, ..TurnContext::default() };
        let mut gathered = Gathered::new(context);
        let past = match &parameters.previous {
            Some(previous) if past.is_none() => Some(self.past(tenant, previous).await?),
            _ => past,
        };
        gathered.begin_with(past);
        let Gathered { mut context, kept, has_conversation, mut n_bytes } = gathered;
        let has_conversation = has_conversation || parameters.conversation.is_some();
        if let Some(conversation) = &parameters.conversation {
            let items = self.conversations.all_items(tenant, conversation, &mut n_bytes).await?;
            context.history = items.into();
        }
        if parameters.references.len() > MAX_REFERENCES {
            return Err(ApiError::array_above_max_length("input", MAX_REFERENCES));
        }
        let mut looked_at = BTreeSet::new();
        for id in &parameters.references {
            if is_known_in(context.history.iter(), id) || is_known_in(context.referenced.iter(), id) {
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
                return Err(ApiError::array_above_max_length("input", context.referenced.len()));
            }
            context.referenced.extend(record.items());
            if !is_known_in(context.referenced.iter(), id) {
                return Err(not_found());
            }
        }
        if context.is_storing {
            context.ids = Some(Ids::new());
        }
        if parameters.is_background {
            context.seed = Some(i64::from(fastrand::u32(..)));
        }
        Ok(Gathered { context, kept, has_conversation, n_bytes })
    }

    /// The conversation up to the end of a kept response, from memory if it has not changed.
    async fn past(&self, tenant: &str, previous: &str) -> Result<Past, ApiError> {
        if let Some(past) = self.recent.find(tenant, previous) {
            if self.still_holds(tenant, &past).await? {
                return Ok(Past::clone(&past));
            }
            self.recent.forget(tenant, previous);
        }
        let past = self.read_past(tenant, previous).await?;
        self.remember(tenant, previous, past.clone());
        Ok(past)
    }

    /// Whether all responses of a conversation are unchanged.
    async fn still_holds(&self, tenant: &str, past: &Past) -> Result<bool, ApiError> {
        let Some(kept) = &past.kept else { return Ok(false) };
        let ids: Vec<&str> = kept.iter().map(|kept| kept.id.as_str()).collect();
        let now = self.store.object_versions(tenant, ObjectKind::Response, &ids).await.map_err(api_error)?;
        Ok(now.into_iter().eq(kept.iter().map(|kept| Some(kept.version))))
    }

    /// Reads the conversation up to the end of a response from the store.
    async fn read_past(&self, tenant: &str, previous: &str) -> Result<Past, ApiError> {
        let mut n_bytes = 0;
        let (version, newest) = self.turn(tenant, previous, &mut n_bytes).await?;
        let ancestors = newest.ancestors.clone();
        if ancestors.len() >= MAX_TURNS {
            return Err(history_too_long());
        }
        let mut kept = vec![KeptResponse { id: previous.to_owned(), version }];
        let mut turns = vec![newest];
        let read = async |id: String| {
            let mut n_read = 0;
            self.turn(tenant, &id, &mut n_read).await.map(|(version, record)| (id, version, record, n_read))
        };
        let mut older = stream::iter(ancestors.into_iter().rev().map(read)).buffered(READS_AT_A_TIME);
        while let Some(turn) = older.next().await {
            let (id, version, record, n_read) = turn?;
            n_bytes += n_read;
            if n_bytes > MAX_HISTORY_BYTES {
                return Err(history_too_long());
            }
            kept.push(KeptResponse { id, version });
            turns.push(record);
        }
        kept.reverse();
        // Only the oldest one can be of a conversation, whose items came before it.
        let oldest = turns.last().filter(|oldest| oldest.conversation.is_some());
        let mut history = match oldest {
            Some(oldest) => History::from(self.items_before(tenant, oldest, &mut n_bytes).await?),
            None => History::default(),
        };
        let has_conversation = oldest.is_some();
        let mut trail = TokenTrail::default();
        for turn in turns.into_iter().rev() {
            if let Some(part) = turn.trail.as_deref().and_then(TrailPart::parse) {
                trail = trail.with(&part);
            }
            history.push(turn.items().collect::<Vec<_>>());
        }
        Ok(Past { history, trail: Arc::new(trail), kept: Some(kept), has_conversation, n_bytes })
    }

    /// Reads a response that another one continues, with its version.
    async fn turn(
        &self,
        tenant: &str,
        id: &str,
        n_bytes: &mut usize,
    ) -> Result<(u64, ResponseRecord), ApiError> {
        let found = self.object(tenant, id).await?;
        let (object, record) = found.ok_or_else(|| ApiError::previous_response_not_found(id))?;
        *n_bytes += object.n_bytes as usize;
        if object.is_pending {
            let reason = "The previous response is still in progress.";
            return Err(ApiError::invalid_value("previous_response_id", reason));
        }
        if *n_bytes > MAX_HISTORY_BYTES { Err(history_too_long()) } else { Ok((object.version, record)) }
    }

    /// The items of a response's conversation before its own.
    async fn items_before(
        &self,
        tenant: &str,
        record: &ResponseRecord,
        n_bytes: &mut usize,
    ) -> Result<Vec<Item>, ApiError> {
        let Some(conversation) = &record.conversation else { return Ok(Vec::new()) };
        let mut items = self.conversations.all_items(tenant, conversation, n_bytes).await?;
        let first = record.input.first().or(record.output.first()).map(Item::id);
        let place = items.iter().position(|item| Some(item.id()) == first);
        items.truncate(place.unwrap_or(items.len()));
        Ok(items)
    }

    /// Stores a response with its input, and adds its items to its conversation, in one transaction.
    ///
    /// # Errors
    /// 404 if the conversation was deleted meanwhile, 503 when the store does not answer.
    pub async fn keep(
        &self,
        tenant: &str,
        id: &str,
        record: &ResponseRecord,
    ) -> Result<KeptResponse, ApiError> {
        let create = ObjectWrite::create(Self::key(tenant, id), now_unix_s(), body_of(record)?)
            .with_parent(record.previous.clone())
            .expiring(self.expires());
        let version = self.write(tenant, create, record).await?;
        Ok(KeptResponse { id: id.to_owned(), version })
    }

    /// Keeps the conversation up to the end of a kept response in memory; the versions of its responses show
    /// later whether it has changed.
    pub fn remember(&self, tenant: &str, id: &str, past: Past) {
        if !past.has_conversation {
            self.recent.remember(tenant, id, past);
        }
    }

    pub(super) async fn write(
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

    /// Reads a response.
    ///
    /// # Errors
    /// 404 if it is not kept, 503 when the store does not answer.
    pub async fn get(&self, tenant: &str, id: &str) -> Result<ResponseRecord, ApiError> {
        let found = self.object(tenant, id).await?;
        found.map(|(_, record)| record).ok_or_else(|| ApiError::response_not_found(id))
    }

    /// Reads the response object as its client sees it. Its items are not parsed, so that polling costs
    /// little.
    ///
    /// # Errors
    /// 404 if it is not kept, 503 when the store does not answer.
    pub async fn shown(&self, tenant: &str, id: &str) -> Result<Box<RawValue>, ApiError> {
        #[derive(Deserialize)]
        struct Shown {
            response: Box<RawValue>,
        }
        let found = self.store.object(&Self::key(tenant, id)).await.map_err(api_error)?;
        let shown = found.and_then(|object| serde_json::from_slice::<Shown>(&object.body).ok());
        shown.map(|shown| shown.response).ok_or_else(|| ApiError::response_not_found(id))
    }

    /// Deletes a response with its items and events.
    ///
    /// # Errors
    /// 404 if it is not kept, 503 when the store does not answer.
    pub async fn delete(&self, tenant: &str, id: &str) -> Result<(), ApiError> {
        let was_there = self.store.delete_object(&Self::key(tenant, id)).await.map_err(api_error)?;
        if was_there { Ok(()) } else { Err(ApiError::response_not_found(id)) }
    }
}

fn history_too_long() -> ApiError {
    let reason = "The kept conversation is too long; use /v1/responses/compact.";
    ApiError::invalid_value("previous_response_id", reason)
}

/// Whether an item with this id is in `items`.
fn is_known_in<'a>(mut items: impl Iterator<Item = &'a Item>, id: &str) -> bool {
    items.any(|item| item.id() == id)
}

pub(super) fn body_of(record: &ResponseRecord) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(record).map_err(|_| ApiError::internal_error("unknown"))
}
