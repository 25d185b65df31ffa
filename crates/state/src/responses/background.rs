//! Responses that are generated without their clients: their claims, events and ends. Does not know how
//! answers are generated.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use throng_api::ApiError;
use throng_store::{
    ClaimBeat, ItemAfter, ItemQuery, Lease, ListOrder, NewItem, ObjectKey, ObjectKind, ObjectWrite,
    PendingObject, StoreError, StoredItem, now_unix_s,
};

use super::{ResponseRecord, Responses, body_of};
use crate::fault::{Missing, api_error};

/// Maximum number of events that are read at a time.
const EVENTS_PER_PAGE: usize = 500;

/// A request that is answered without its client, in a form that any process can answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KeptRequest {
    /// Body of the request.
    pub body: String,
    /// Seed, so that any process generates the same answer.
    pub seed: Option<i64>,
    /// Holder of the request's key, as the gateway writes it.
    #[serde(default)]
    pub principal: Value,
}

/// A response that is generated without its client.
#[derive(Debug, Clone)]
pub struct BackgroundResponse {
    key: ObjectKey,
    owner: String,
    version: u64,
}

/// A response whose process has died, claimed by this one.
#[derive(Debug)]
pub struct Orphan {
    /// The claimed response.
    pub response: BackgroundResponse,
    /// Request of the response.
    pub request: KeptRequest,
    /// Model that its process has chosen.
    pub model: String,
    /// Ids of the response's calls, which its client may have received.
    pub call_ids: Vec<String>,
}

/// Events of a response, in order.
#[derive(Debug, Default)]
pub struct EventPage {
    /// Events in the form in which they are sent.
    pub events: Vec<Vec<u8>>,
    /// Number of the last event, if there is one.
    pub last: Option<u64>,
    /// Whether more events will follow.
    pub is_running: bool,
}

impl Responses {
    /// Stores a response that will be generated without its client, and claims it for the caller.
    ///
    /// # Errors
    /// 503 when the store does not answer.
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

    /// Responses of all tenants that wait for a process.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn pending(&self, after: u64, limit: usize) -> Result<Vec<PendingObject>, StoreError> {
        self.store.pending_objects(ObjectKind::Response, after, limit).await
    }

    /// Claims a response of a dead process; `dead` is the last renewal of that one's claim.
    ///
    /// # Errors
    /// The errors of the store.
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

    /// Appends events to a response, the first with the number `first`. Returns whether this owner must
    /// still answer it.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn append_events(
        &self,
        response: &BackgroundResponse,
        first: u64,
        events: Vec<Vec<u8>>,
    ) -> Result<bool, StoreError> {
        let items = numbered(events, first);
        let append = ObjectWrite::append(response.key.clone(), items).owned_by(&response.owner);
        match self.store.write_objects(&[append]).await {
            Ok(_) => Ok(true),
            Err(StoreError::LeaseLost | StoreError::UnknownObject) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Renews the claim, and returns whether this owner must still answer the response.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn beat(&self, response: &BackgroundResponse) -> Result<bool, StoreError> {
        self.store.beat_object(&response.key, &response.owner).await
    }

    /// Whether a response was neither cancelled nor deleted: its version is the same, which new events do not
    /// change.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn is_pending(&self, response: &BackgroundResponse) -> Result<bool, StoreError> {
        let ObjectKey { tenant, kind, id } = &response.key;
        let versions = self.store.object_versions(tenant, *kind, &[id]).await?;
        Ok(versions == [Some(response.version)])
    }

    /// Ends a response with its last events.
    ///
    /// # Errors
    /// 4xx if it was cancelled or deleted, 503 when the store does not answer.
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
        let replace = ObjectWrite::replace(&object, body_of(record)?)
            .pending(false)
            .with_items(numbered(events, first))
            .owned_by(&response.owner);
        self.write(&response.key.tenant, replace, record).await?;
        // The response has ended; the claim would expire anyway.
        drop(self.store.release_object(&response.key, &response.owner).await);
        Ok(())
    }

    /// Ends a response that cannot be answered.
    ///
    /// # Errors
    /// 4xx if it was cancelled or deleted, 503 when the store does not answer.
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

    /// Cancels a response; one that has ended stays unchanged.
    ///
    /// # Errors
    /// 404 if it is not kept, 503 when the store does not answer.
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

    /// Reads a page of a response's events after number `after`.
    ///
    /// # Errors
    /// 404 if the response is not kept, 503 when the store does not answer.
    pub async fn events(&self, tenant: &str, id: &str, after: Option<u64>) -> Result<EventPage, ApiError> {
        let key = Self::key(tenant, id);
        let missing = || Missing::Response(id).error();
        // Looked at before the events: what comes between is found the next time. The record, which may be
        // large, is not read, nor are events that the caller has.
        let state = self.store.object_state(&key).await.map_err(api_error)?.ok_or_else(missing)?;
        if after.is_some_and(|after| after.saturating_add(1) >= state.n_items) || state.n_items == 0 {
            return Ok(EventPage { is_running: state.is_pending, ..EventPage::default() });
        }
        let query = ItemQuery {
            after: after.map(ItemAfter::Number),
            order: ListOrder::Ascending,
            ..ItemQuery::new(key, EVENTS_PER_PAGE)
        };
        let items: Vec<StoredItem> = self.store.items(&query).await.map_err(api_error)?;
        let last = items.last().map(|item| item.number);
        let is_running = state.is_pending || last.is_some_and(|last| last + 1 < state.n_items);
        Ok(EventPage { events: items.into_iter().map(|item| item.body).collect(), last, is_running })
    }
}

/// Converts events to items, the first with the number `first`.
fn numbered(events: Vec<Vec<u8>>, first: u64) -> Vec<NewItem> {
    let numbered = events.into_iter().zip(first..);
    numbered.map(|(body, number)| NewItem { id: number.to_string(), body }).collect()
}

/// Replaces members of a response object.
fn changed<const N: usize>(response: &RawValue, members: [(&str, Value); N]) -> Box<RawValue> {
    let changed = serde_json::from_str(response.get()).ok().and_then(|mut object: Value| {
        for (key, value) in members {
            object[key] = value;
        }
        serde_json::value::to_raw_value(&object).ok()
    });
    changed.unwrap_or_else(|| response.to_owned())
}

/// Fields of a response object that are parsed again.
#[derive(Debug, Default, Deserialize)]
struct Told {
    model: String,
}

/// Id of the call that begins with an event.
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

    /// Tenant of the response.
    pub fn tenant(&self) -> &str {
        &self.key.tenant
    }
}
