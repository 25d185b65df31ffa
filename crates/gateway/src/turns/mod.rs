//! Turns of kept conversations: what a request goes on with is gathered before it is read, and its response
//! is kept before its client knows how it ended. Does not know routes.

mod background;
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
use throng_api::responses::{CreateRequest, Ids, Item, StateParameters, TurnContext, WholeResponse};
use throng_api::{ApiError, ReadOptions, Request};
use throng_http::memory::{Part, Reservation};
use throng_state::responses::{Gathered, KeptRequest, Orphan, ResponseRecord, Responses};

pub(crate) use self::background::answer_in_background;
pub(crate) use self::orphans::adopt_orphans;
pub(crate) use self::tail::tail;
pub(crate) use self::tools::ToolRun;
use crate::app::App;
use crate::caller::Caller;
use crate::generation::AnswerRecorder;
use crate::rejection::memory_full;

/// A turn of a kept conversation.
#[derive(Debug)]
pub(crate) struct Turn {
    responses: Responses,
    tenant: String,
    parameters: StateParameters,
    context: TurnContext,
    /// The responses before the previous one.
    ancestors: Vec<String>,
    /// The items of its input, once it was read.
    input: Mutex<Vec<Item>>,
    /// The body of its request, where it is answered without its client.
    request: Option<Bytes>,
    _memory: Reservation,
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
        let Gathered { context, ancestors, n_bytes } = responses.gather(&tenant, &parameters).await?;
        // The items once as they are kept, and once in the messages that are made of them.
        let memory = app.work.memory.reserve(Part::Bodies, 2 * n_bytes).map_err(memory_full)?;
        if !context.is_storing && !parameters.goes_on() {
            return Ok(None);
        }
        let request = match (parameters.is_background, parameters.names_servers) {
            (true, true) => StateParameters::without_secrets(body).map(Bytes::from),
            (is_background, _) => is_background.then(|| body.clone()),
        };
        Ok(Some(Arc::new(Self {
            responses,
            tenant,
            parameters,
            context,
            ancestors,
            input: Mutex::default(),
            request,
            _memory: memory,
        })))
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
        let Gathered { mut context, ancestors, n_bytes } = responses.gather(&tenant, &parameters).await?;
        context.ids = Some(Ids::of(orphan.response.id()));
        context.seed = orphan.request.seed;
        context.call_ids.clone_from(&orphan.call_ids);
        let memory = app.work.memory.reserve(Part::Bodies, 2 * n_bytes).map_err(memory_full)?;
        let (input, request) = (Mutex::default(), Some(body));
        Ok(Some(Arc::new(Self {
            responses,
            tenant,
            parameters,
            context,
            ancestors,
            input,
            request,
            _memory: memory,
        })))
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
        let read = CreateRequest::parse(body, options)?.into_request(&self.context)?;
        Ok(self.keep_input(read))
    }

    /// Notes the items of a request that was read. Returns the request.
    pub fn keep_input(&self, (request, items): (Request, Vec<Item>)) -> Request {
        *self.input.lock().unwrap_or_else(PoisonError::into_inner) = items;
        request
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
        match self.context.slot.take_finished() {
            Some(response) => {
                let record = self.record(response)?;
                self.responses.keep(&self.tenant, self.id(), &record).await
            }
            None => Ok(()),
        }
    }

    /// The events of its response, which is answered without its client.
    ///
    /// # Errors
    /// 503 where the store does not answer.
    pub async fn tail(&self, app: &Arc<App>) -> Result<Response, ApiError> {
        tail(app, self.responses.clone(), self.tenant.clone(), self.id().to_owned(), None).await
    }

    /// The responses before this one, the oldest first.
    fn ancestors_of_next(&self) -> Vec<String> {
        self.ancestors.iter().chain(&self.parameters.previous).cloned().collect()
    }

    fn id(&self) -> &str {
        self.context.ids.as_ref().map_or("", |ids| ids.response())
    }

    fn record(&self, response: WholeResponse) -> Result<ResponseRecord, ApiError> {
        let json = String::from_utf8(response.json).ok().and_then(|json| RawValue::from_string(json).ok());
        Ok(ResponseRecord {
            response: json.ok_or_else(|| ApiError::internal_error("unknown"))?,
            input: self.input.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            output: response.output,
            previous: self.parameters.previous.clone(),
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
