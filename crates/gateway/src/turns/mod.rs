//! Turns of kept conversations: their history is read before the request is parsed, and the response is
//! stored before its client gets the end. Does not know routes.

mod background;
mod lane_pasts;
mod orphans;
mod tail;
mod tool_entry;
mod tools;

use std::sync::{Arc, Mutex, PoisonError};

use axum::response::Response;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::value::RawValue;
use throng_api::responses::{
    CreateRequest, Framing, Ids, Item, Lane, StateParameters, TokenTrail, TrailPart, TurnContext,
    WholeResponse,
};
use throng_api::{ApiError, ReadOptions, Request};
use throng_http::memory::{Part, Reservation};
use throng_state::responses::{Gathered, KeptRequest, KeptResponse, Orphan, Past, ResponseRecord, Responses};

pub(crate) use self::background::answer_in_background;
pub(crate) use self::lane_pasts::LanePasts;
pub(crate) use self::orphans::adopt_orphans;
pub(crate) use self::tail::tail;
pub(crate) use self::tools::{ToolRun, offered_tools};
use crate::app::App;
use crate::caller::Caller;
use crate::generation::AnswerRecorder;
use crate::kept::principal_of;
use crate::rejection::memory_full;
use throng_auth::Tenant;

/// Body that is kept for a background request whose tools the gateway calls.
const CALLS_TOOLS: &[u8] = br#"{"tools":[{"type":"mcp"}]}"#;

/// A turn of a kept conversation.
#[derive(Debug)]
pub(crate) struct Turn {
    /// The kept responses, where there is a store.
    responses: Option<Responses>,
    tenant: String,
    parameters: StateParameters,
    context: TurnContext,
    /// Kept responses of the whole history; `None` if any of them is not kept.
    kept: Option<Vec<KeptResponse>>,
    /// Whether the history has items of a conversation.
    has_conversation: bool,
    /// Items of the input, once it was parsed.
    input: Mutex<Vec<Item>>,
    /// Request of the turn, if it is answered without its client.
    request: Option<KeptRequest>,
    /// WebSocket message of the turn, if there is one; its connection keeps the response.
    message: Option<MessageTurn>,
    /// Bytes of the history and of the body.
    n_bytes: usize,
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
    /// The turn of a body with these parameters; `None` if no turn is stored for it and it continues no
    /// conversation.
    ///
    /// # Errors
    /// 4xx for objects that are not kept for this tenant, or if they need a store that is absent; 503 when
    /// the store does not answer.
    pub async fn of(
        app: &App,
        caller: &Caller,
        body: &Bytes,
        parameters: StateParameters,
    ) -> Result<Option<Arc<Self>>, ApiError> {
        if parameters.previous.is_some() && parameters.conversation.is_some() {
            // They exclude each other, which is refused when the body is read as a whole.
            return Ok(None);
        }
        let Some(responses) = app.responses(&caller.key_holder()) else {
            parameters.check_without_store()?;
            return Ok(None);
        };
        let tenant = caller.tenant().0.to_string();
        let gathered = responses.gather(&tenant, &parameters, None).await?;
        if !gathered.context.is_storing && !parameters.goes_on() {
            return Ok(None);
        }
        let kept = parameters.is_background.then(|| match parameters.names_servers {
            // It is not repeated, and may have secrets for its servers.
            true => Bytes::from_static(CALLS_TOOLS),
            false => body.clone(),
        });
        let keep = |body: Bytes| kept_request(&body, gathered.context.seed, &caller.key_holder());
        let request = kept.map(keep).transpose()?;
        let turn = Self::new(app, Some(responses), tenant, parameters, gathered, body.len())?;
        Ok(Some(Arc::new(Self { request, ..turn })))
    }

    /// The turn that a message of a connection requests.
    ///
    /// # Errors
    /// Errors of [`Self::of`].
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
        let responses = app.responses(&caller.key_holder());
        let mut gathered = match &responses {
            Some(responses) => responses.gather(&tenant, &parameters, past).await?,
            None => Gathered::without_store(&parameters, past)?,
        };
        gathered.context.framing = Framing::Messages(message.lane.clone());
        gathered.context.is_warmup = !message.generates;
        gathered.context.ids.get_or_insert_with(Ids::new);
        gathered.context.trail.get_or_insert_default();
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
        let Gathered { context, kept, has_conversation, n_bytes } = gathered;
        // The items once as they are kept, and once in the messages that are made of them.
        let memory = app.work.memory.reserve(Part::Bodies, 2 * n_bytes).map_err(memory_full)?;
        Ok(Self {
            responses,
            tenant,
            parameters,
            context,
            kept,
            has_conversation,
            input: Mutex::default(),
            request: None,
            message: None,
            n_bytes: n_bytes + n_body_bytes,
            _memory: memory,
        })
    }

    /// The turn of a response whose process has died.
    ///
    /// # Errors
    /// Errors of [`Self::of`].
    async fn of_orphan(
        app: &App,
        responses: Responses,
        orphan: &Orphan,
    ) -> Result<Option<Arc<Self>>, ApiError> {
        let body = orphan.request.body.as_bytes();
        let Some(parameters) = StateParameters::of(body) else { return Ok(None) };
        let tenant = orphan.response.tenant().to_owned();
        let mut gathered = responses.gather(&tenant, &parameters, None).await?;
        gathered.context.ids = Some(Ids::of(orphan.response.id()));
        gathered.context.seed = orphan.request.seed;
        gathered.context.call_ids.clone_from(&orphan.call_ids);
        let turn = Self::new(app, Some(responses), tenant, parameters, gathered, body.len())?;
        Ok(Some(Arc::new(turn)))
    }

    /// The kept responses of the tenant.
    ///
    /// # Errors
    /// 404 on a server without a store.
    fn responses(&self) -> Result<&Responses, ApiError> {
        self.responses.as_ref().ok_or_else(ApiError::nothing_kept)
    }

    /// The kept part of the turn's conversation, and how its response is kept.
    pub fn context(&self) -> TurnContext {
        self.context.clone()
    }

    /// Parses the request of the turn.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse(&self, body: &[u8], options: &ReadOptions) -> Result<Request, ApiError> {
        let read = self.reader()(body, options)?.into_request(&self.context)?;
        Ok(self.keep_input(read))
    }

    /// Keeps the items of a parsed request, and returns the request.
    pub fn keep_input(&self, (request, items): (Request, Vec<Item>)) -> Request {
        *self.input.lock().unwrap_or_else(PoisonError::into_inner) = items;
        request
    }

    /// Function that parses the request.
    pub fn reader(&self) -> fn(&[u8], &ReadOptions) -> Result<CreateRequest, ApiError> {
        if self.message.is_some() { CreateRequest::parse_message } else { CreateRequest::parse }
    }

    /// Parses a request for the compaction of the conversation.
    ///
    /// # Errors
    /// When the body is invalid.
    pub fn parse_compaction(&self, body: &[u8], options: &ReadOptions) -> Result<Request, ApiError> {
        CreateRequest::parse(body, options)?.into_compaction(&self.context)
    }

    /// Whether the turn is answered without its client.
    pub fn is_background(&self) -> bool {
        self.parameters.is_background
    }

    /// Whether the request names servers whose tools the gateway calls.
    pub fn names_servers(&self) -> bool {
        self.parameters.names_servers
    }

    /// Stores the response if it has ended.
    ///
    /// # Errors
    /// 404 if its conversation was deleted meanwhile, 503 when the store does not answer.
    pub async fn keep(&self) -> Result<(), ApiError> {
        let Some(response) = self.context.slot.take_finished() else { return Ok(()) };
        if response.has_failed {
            self.forget();
        }
        let kept = match self.context.is_storing {
            true => {
                let record = self.record(&response)?;
                Some(self.responses()?.keep(&self.tenant, self.id(), &record).await?)
            }
            false => None,
        };
        if !response.has_failed {
            self.remember(kept, response);
        }
        Ok(())
    }

    /// Remembers the conversation up to the end of a response: for all where it is kept, else for its
    /// connection.
    fn remember(&self, kept: Option<KeptResponse>, response: WholeResponse) {
        let trail = Arc::new(self.trail_after(response.trail.as_ref()));
        let mut history = self.context.history.clone();
        let input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        history.push(input.iter().cloned().chain(response.output).collect::<Vec<_>>());
        let n_bytes = self.n_bytes + response.json.len();
        let has_conversation = self.has_conversation;
        let past = |kept| Past { history, trail, kept, has_conversation, n_bytes };
        match (&self.responses, kept, &self.message) {
            (Some(responses), Some(own), _) => {
                // The record of a response after one that is not kept has the whole history.
                let all = self.kept.iter().flatten().cloned().chain([own]).collect();
                responses.remember(&self.tenant, self.id(), past(Some(all)));
            }
            (_, None, Some(message)) => message.pasts.remember(&message.lane, self.id(), past(None)),
            _ => {}
        }
    }

    /// Removes the response that a message continued from the connection's memory: it has failed.
    pub fn forget(&self) {
        if let (Some(message), Some(previous)) = (&self.message, &self.parameters.previous) {
            message.pasts.forget(&message.lane, previous);
        }
    }

    /// Streams the events of the response, which is answered without its client.
    ///
    /// # Errors
    /// 503 when the store does not answer.
    pub async fn tail(&self, app: &Arc<App>) -> Result<Response, ApiError> {
        tail(app, self.responses()?.clone(), self.tenant.clone(), self.id().to_owned(), None).await
    }

    /// Ids of the responses before the next one, the oldest first.
    fn ancestors_of_next(&self) -> Vec<String> {
        self.kept.iter().flatten().map(|kept| kept.id.clone()).collect()
    }

    fn id(&self) -> &str {
        self.context.ids.as_ref().map_or("", |ids| ids.response())
    }

    /// Tokens of the conversation after this turn, of which this is the part.
    fn trail_after(&self, part: Option<&TrailPart>) -> TokenTrail {
        let (none, before) = (TokenTrail::default(), self.context.trail.as_deref());
        let before = before.unwrap_or(&none);
        part.map_or_else(|| before.clone(), |part| before.with(part))
    }

    fn record(&self, response: &WholeResponse) -> Result<ResponseRecord, ApiError> {
        let json =
            String::from_utf8(response.json.clone()).ok().and_then(|json| RawValue::from_string(json).ok());
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if self.kept.is_none() {
            // It must be found again with nothing but its own record.
            input.splice(..0, self.context.history.iter().cloned());
        }
        Ok(ResponseRecord {
            response: json.ok_or_else(|| ApiError::internal_error("unknown"))?,
            input,
            output: response.output.clone(),
            previous: self.parameters.previous.clone().filter(|_| self.kept.is_some()),
            ancestors: self.ancestors_of_next(),
            conversation: self.parameters.conversation.clone(),
            trail: match self.kept {
                Some(_) => response.trail.as_ref().map(TrailPart::to_text),
                None => Some(self.trail_after(response.trail.as_ref()).to_part().to_text()),
            },
            request: None,
        })
    }
}

/// A request, to be answered by any process within the limits of its key.
fn kept_request(body: &Bytes, seed: Option<i64>, key_holder: &Tenant) -> Result<KeptRequest, ApiError> {
    let body = String::from_utf8(body.to_vec())
        .map_err(|error| ApiError::invalid_utf8(error.utf8_error().valid_up_to()))?;
    Ok(KeptRequest { body, seed, principal: principal_of(key_holder) })
}

impl AnswerRecorder for Turn {
    fn record(&self) -> BoxFuture<'_, Result<(), ApiError>> {
        Self::keep(self).boxed()
    }
}
