//! Turns of kept conversations: what a request goes on with is gathered before it is read, and its response
//! is kept before its client knows how it ended. Does not know routes.

mod background;
mod lane_pasts;
mod orphans;
mod tail;

use std::sync::{Arc, Mutex, PoisonError};

use axum::response::Response;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::value::RawValue;
use throng_api::responses::{
    CreateRequest, Framing, Ids, Item, Lane, StateParameters, TurnContext, WholeResponse,
};
use throng_api::{ApiError, ReadOptions, Request};
use throng_http::memory::{Part, Reservation};
use throng_state::responses::{Gathered, KeptRequest, Orphan, Past, ResponseRecord, Responses};

pub(crate) use self::background::answer_in_background;
pub(crate) use self::lane_pasts::LanePasts;
pub(crate) use self::orphans::adopt_orphans;
pub(crate) use self::tail::tail;
use crate::app::App;
use crate::caller::Caller;
use crate::generation::AnswerRecorder;
use crate::rejection::memory_full;

/// A turn of a kept conversation.
#[derive(Debug)]
pub(crate) struct Turn {
    /// The kept responses, where there is a store.
    responses: Option<Responses>,
    tenant: String,
    parameters: StateParameters,
    context: TurnContext,
    /// The responses before the previous one.
    ancestors: Vec<String>,
    /// The items of its input, once it was read.
    input: Mutex<Vec<Item>>,
    /// The body of its request, where it is answered without its client.
    request: Option<Bytes>,
    /// Where its connection remembers the response, if it came as a message.
    message: Option<MessageTurn>,
    /// Bytes of all that comes before its own items, and of its body.
    n_bytes: usize,
    /// Whether all that comes before its own items is kept.
    is_kept: bool,
    _memory: Reservation,
}

/// A message of a connection that a turn begins with.
#[derive(Debug)]
pub(crate) struct MessageTurn {
    /// Lane of the response.
    pub lane: Lane,
    /// Whether text is to be generated, or the input only prepared.
    pub generates: bool,
    /// The conversations of the connection.
    pub pasts: Arc<LanePasts>,
}

impl Turn {
    /// The turn that a body asks for; `None` where nothing is kept and nothing is gone on with.
    ///
    /// # Errors
    /// 4xx for what is not kept for this tenant or needs a store that is absent; 503 where the store does not
    /// answer.
    pub async fn of(app: &App, caller: &Caller, body: &Bytes) -> Result<Option<Arc<Self>>, ApiError> {
        // What excludes each other is refused when the body is read as a whole.
        let is_one =
            |parameters: &StateParameters| parameters.previous.is_none() || parameters.conversation.is_none();
        let Some(parameters) = StateParameters::of(body).filter(is_one) else { return Ok(None) };
        let Some(responses) = app.policy.responses() else {
            parameters.check_without_store()?;
            return Ok(None);
        };
        let tenant = caller.tenant().0.to_string();
        let gathered = responses.gather(&tenant, &parameters, None).await?;
        if !gathered.context.is_storing && !parameters.goes_on() {
            return Ok(None);
        }
        let request = parameters.is_background.then(|| body.clone());
        let turn = Self::new(app, Some(responses), tenant, parameters, gathered, body.len())?;
        Ok(Some(Arc::new(Self { request, ..turn })))
    }

    /// The turn that a message of a connection asks for.
    ///
    /// # Errors
    /// The errors of [`Self::of`].
    pub async fn of_message(
        app: &App,
        caller: &Caller,
        body: &Bytes,
        message: MessageTurn,
    ) -> Result<Arc<Self>, ApiError> {
        // What cannot be read is refused when the body is read as a whole.
        let parameters = StateParameters::of(body).unwrap_or_default();
        let tenant = caller.tenant().0.to_string();
        let past = parameters.previous.as_deref().and_then(|previous| message.pasts.find(previous));
        let responses = app.policy.responses();
        let mut gathered = match &responses {
            Some(responses) => responses.gather(&tenant, &parameters, past).await?,
            None => Gathered::without_store(&parameters, past)?,
        };
        gathered.context.framing = Framing::Messages(message.lane.clone());
        gathered.context.is_warmup = !message.generates;
        gathered.context.ids.get_or_insert_with(Ids::new);
        let turn = Self::new(app, responses, tenant, parameters, gathered, body.len())?;
        Ok(Arc::new(Self { message: Some(message), ..turn }))
    }

    fn new(
        app: &App,
        responses: Option<Responses>,
        tenant: String,
        parameters: StateParameters,
        gathered: Gathered,
        n_body_bytes: usize,
    ) -> Result<Self, ApiError> {
        let Gathered { context, ancestors, n_bytes, is_kept } = gathered;
        // The items once as they are kept, and once in the messages that are made of them.
        let memory = app.work.memory.reserve(Part::Bodies, 2 * n_bytes).map_err(memory_full)?;
        Ok(Self {
            responses,
            tenant,
            parameters,
            context,
            ancestors,
            input: Mutex::default(),
            request: None,
            message: None,
            n_bytes: n_bytes + n_body_bytes,
            is_kept,
            _memory: memory,
        })
    }

    /// The turn of a response whose process has died.
    ///
    /// # Errors
    /// The errors of [`Self::of`].
    async fn of_orphan(app: &App, orphan: &Orphan) -> Result<Option<Arc<Self>>, ApiError> {
        let body = Bytes::from(orphan.request.body.clone());
        let Some((parameters, responses)) = StateParameters::of(&body).zip(app.policy.responses()) else {
            return Ok(None);
        };
        let tenant = orphan.response.tenant().to_owned();
        let mut gathered = responses.gather(&tenant, &parameters, None).await?;
        gathered.context.ids = Some(Ids::of(orphan.response.id()));
        gathered.context.seed = orphan.request.seed;
        gathered.context.call_ids.clone_from(&orphan.call_ids);
        let turn = Self::new(app, Some(responses), tenant, parameters, gathered, body.len())?;
        Ok(Some(Arc::new(Self { request: Some(body), ..turn })))
    }

    /// The kept responses.
    ///
    /// # Errors
    /// 404 on a server without a store.
    fn responses(&self) -> Result<&Responses, ApiError> {
        self.responses.as_ref().ok_or_else(ApiError::nothing_kept)
    }

    /// The request, to be answered by any process.
    fn kept_request(&self) -> Option<KeptRequest> {
        let body = String::from_utf8(self.request.as_ref()?.to_vec()).ok()?;
        Some(KeptRequest { body, seed: self.context.seed })
    }

    /// Reads the request of the turn.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse(&self, body: &[u8], options: &ReadOptions) -> Result<Request, ApiError> {
        let (request, items) = CreateRequest::parse(body, options)?.into_request(&self.context)?;
        *self.input.lock().unwrap_or_else(PoisonError::into_inner) = items;
        Ok(request)
    }

    /// Reads the message of the turn.
    ///
    /// # Errors
    /// The same.
    pub fn parse_message(&self, body: &[u8], options: &ReadOptions) -> Result<Request, ApiError> {
        let (request, items) = CreateRequest::parse_message(body, options)?.into_request(&self.context)?;
        *self.input.lock().unwrap_or_else(PoisonError::into_inner) = items;
        Ok(request)
    }

    /// Reads the request to make the conversation short.
    ///
    /// # Errors
    /// The same.
    pub fn parse_compaction(&self, body: &[u8], options: &ReadOptions) -> Result<Request, ApiError> {
        CreateRequest::parse(body, options)?.into_compaction(&self.context)
    }

    /// Whether it is answered without its client.
    pub fn is_background(&self) -> bool {
        self.parameters.is_background
    }

    /// Keeps the response if it has ended.
    ///
    /// # Errors
    /// 404 where its conversation was deleted meanwhile, 503 where the store does not answer.
    pub async fn keep(&self) -> Result<(), ApiError> {
        let Some(response) = self.context.slot.take_finished() else { return Ok(()) };
        if let Some(message) = &self.message {
            self.remember(message, &response);
        }
        if !self.context.is_storing {
            return Ok(());
        }
        let record = self.record(response)?;
        self.responses()?.keep(&self.tenant, self.id(), &record).await
    }

    /// Has the connection remember a response that can be gone on from, or forget what it went on from.
    fn remember(&self, message: &MessageTurn, response: &WholeResponse) {
        if response.has_failed {
            return self.forget();
        }
        let mut history = self.context.history.clone();
        let input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        history.push(input.iter().chain(&response.output).cloned().collect::<Vec<_>>());
        let kept = (self.context.is_storing && self.is_kept).then(|| {
            let mut kept = self.ancestors_of_next();
            kept.push(self.id().to_owned());
            kept
        });
        let past = Past { history, kept, n_bytes: self.n_bytes + response.json.len() };
        message.pasts.remember(&message.lane, self.id(), past);
    }

    /// Has the connection forget the response that a message went on from: it has failed.
    pub fn forget(&self) {
        if let (Some(message), Some(previous)) = (&self.message, &self.parameters.previous) {
            message.pasts.forget(&message.lane, previous);
        }
    }

    /// The events of its response, which is answered without its client.
    ///
    /// # Errors
    /// 503 where the store does not answer.
    pub async fn tail(&self, app: &Arc<App>) -> Result<Response, ApiError> {
        tail(app, self.responses()?.clone(), self.tenant.clone(), self.id().to_owned(), None).await
    }

    /// The responses before this one, the oldest first.
    fn ancestors_of_next(&self) -> Vec<String> {
        if !self.is_kept {
            return Vec::new();
        }
        self.ancestors.iter().chain(&self.parameters.previous).cloned().collect()
    }

    fn id(&self) -> &str {
        self.context.ids.as_ref().map_or("", |ids| ids.response())
    }

    fn record(&self, response: WholeResponse) -> Result<ResponseRecord, ApiError> {
        let json = String::from_utf8(response.json).ok().and_then(|json| RawValue::from_string(json).ok());
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !self.is_kept {
            // It must be found again with nothing but its own record.
            input.splice(..0, self.context.history.iter().cloned());
        }
        Ok(ResponseRecord {
            response: json.ok_or_else(|| ApiError::internal_error("unknown"))?,
            input,
            output: response.output,
            previous: self.parameters.previous.clone().filter(|_| self.is_kept),
            ancestors: self.ancestors_of_next(),
            conversation: self.parameters.conversation.clone(),
            request: None,
        })
    }
}

impl AnswerRecorder for Turn {
    fn record(&self) -> BoxFuture<'_, Result<(), ApiError>> {
        Self::keep(self).boxed()
    }
}
