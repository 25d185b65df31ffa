//! Responses whose model calls tools of this gateway: a turn of the model, its calls, the next turn. Does
//! not run the tools.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, stream};
use throng_api::answer::AnswerEvent;
use throng_api::responses::{CreateRequest, Item, TurnContext};
use throng_api::{ApiError, ReadOptions, Request};
use throng_http::memory::{Part, Reservation};
use throng_metering::observation::ToolReport;
use throng_store::Outcome;
use throng_tools::{CallRecord, Called, Observed, PendingCall, Session, Toolbox, TurnOutcome};

use super::Turn;
use super::tool_entry::ToolEntry;
use crate::app::App;
use crate::caller::Caller;
use crate::config::PARSE_FACTOR;
use crate::generate::{StartedRequest, Target, UnreadRequest, check, generate};
use crate::generation::{AnswerSource, AnswerStream};
use crate::rejection::memory_full;

/// Maximum number of running calls of one response.
const CALLS_AT_A_TIME: usize = 8;

/// The tools of a request, before the first turn of its model.
#[derive(Debug)]
pub(crate) struct ToolRun {
    session: Session,
    n_bytes: usize,
    _memory: Reservation,
}

impl ToolRun {
    /// Lists the tools that the gateway must call for a request to `model`, or to the model that the request
    /// names if that is `None`. Then runs the calls that the request approves.
    ///
    /// # Errors
    /// 4xx for tools that are not permitted or do not answer; errors of [`check`] and of the request itself,
    /// before any call has run.
    pub async fn of(
        app: &Arc<App>,
        caller: &Arc<Caller>,
        (turn, model): (Option<&Turn>, Option<&str>),
        (body, options): (Bytes, ReadOptions),
    ) -> Result<Self, ApiError> {
        let toolbox = app.tools.clone().ok_or_else(|| ApiError::internal_error(caller.id_text()))?;
        let n_bytes = body.len();
        let mut memory =
            app.work.memory.reserve(Part::Bodies, n_bytes * PARSE_FACTOR).map_err(memory_full)?;
        let reader = turn.map_or(CreateRequest::parse as _, Turn::reader);
        let parse = move || reader(&body, &options);
        let read = tokio::task::spawn_blocking(parse).await;
        let request = read.map_err(|_| ApiError::internal_error(caller.id_text()))??;
        let before = turn.map_or_else(TurnContext::default, |turn| turn.context.clone());
        let model = model.unwrap_or(request.model()).to_owned();
        // The check and the ledger entries of calls depend on them.
        caller.set_service_tier(request.service_class());
        caller.set_user(request.user());
        check(app, caller, &model)?;
        let (mut session, approved) = Session::begin(&toolbox, request, &before).await?;
        memory.cover((n_bytes + session.n_bytes()) * PARSE_FACTOR).map_err(memory_full)?;
        if !approved.is_empty() {
            // A call changes something elsewhere, so nothing runs for a request that is refused afterwards.
            let (request, context) = session.next_request();
            request.into_request(&context)?;
            check(app, caller, &model)?;
        }
        let mut calls = run(app.clone(), caller.clone(), approved);
        while let Some(called) = calls.next().await {
            session.settle_approved(called);
        }
        Ok(Self { session, n_bytes, _memory: memory })
    }

    /// The request of the model's first turn, with its own items.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn request(&self) -> Result<(Request, Vec<Item>), ApiError> {
        let (request, context) = self.session.next_request();
        request.into_request(&context)
    }

    /// The error that the response fails with once its stream has begun: a server does not list its tools.
    pub fn failure(&self) -> Option<&ApiError> {
        self.session.failure()
    }

    /// The answer whose model has begun its first turn in `started`.
    pub fn follow(
        self: Arc<Self>,
        app: &Arc<App>,
        caller: Arc<Caller>,
        model: Option<String>,
        started: StartedRequest,
    ) -> StartedRequest {
        started.map_stream(|first| {
            AnswerStream::new(ToolLoop {
                app: app.clone(),
                caller,
                model,
                session: self.session.clone(),
                memory: app.work.memory.reservation(Part::Answers),
                state: State::Answering(first),
                run: self,
            })
        })
    }
}

/// The context of a request whose tokens are counted: with the tools of its servers. No call runs.
///
/// # Errors
/// 4xx for tools that are not permitted or do not answer, and for a request that cannot be read.
pub(crate) async fn offered_tools(
    toolbox: &Toolbox,
    turn: Option<&Turn>,
    (body, options): (Bytes, ReadOptions),
) -> Result<TurnContext, ApiError> {
    let request = CreateRequest::parse_to_count(&body, &options)?;
    let before = turn.map(Turn::context).unwrap_or_default();
    let (session, _) = Session::begin(toolbox, request, &before).await?;
    Ok(session.next_request().1)
}

/// Runs calls, each with an entry in the ledger. Dropping the stream aborts them.
fn run(app: Arc<App>, caller: Arc<Caller>, calls: Vec<PendingCall>) -> BoxStream<'static, Called> {
    let one = move |call: PendingCall| {
        let entry = app.policy.ledger.as_ref().and_then(|ledger| ToolEntry::begin(ledger, &caller, &call));
        let (caller, metrics) = (caller.clone(), app.observed.metrics.tools.clone());
        async move {
            let called = call.run().await;
            let outcome = if called.result.is_ok() { Outcome::Stop } else { Outcome::Error };
            if let Some(entry) = entry {
                entry.end(outcome);
            }
            let CallRecord { server, tool, duration, is_operators, status } = called.record.clone();
            metrics.called(is_operators.then_some((&server, &tool)), status);
            caller.record_tool(ToolReport { server, tool, duration, status });
            called
        }
    };
    stream::iter(calls).map(one).buffer_unordered(CALLS_AT_A_TIME).boxed()
}

/// The events of all turns of a response.
struct ToolLoop {
    app: Arc<App>,
    caller: Arc<Caller>,
    /// Name of the model, if it is not the one that the request names.
    model: Option<String>,
    session: Session,
    /// Memory of the items so far.
    memory: Reservation,
    state: State,
    run: Arc<ToolRun>,
}

enum State {
    /// The model is generating.
    Answering(AnswerStream),
    /// Calls are running.
    Calling(BoxStream<'static, Called>),
    /// The next turn is being started.
    Starting(BoxFuture<'static, Result<StartedRequest, ApiError>>),
    /// All turns of the model have ended.
    Over,
}

impl fmt::Debug for ToolLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolLoop").field("session", &self.session).finish_non_exhaustive()
    }
}

impl ToolLoop {
    /// Starts the next turn of the model.
    fn start(&self) -> BoxFuture<'static, Result<StartedRequest, ApiError>> {
        let (request, context) = self.session.next_request();
        let n_bytes = self.run.n_bytes + self.session.n_bytes();
        let (app, caller, memory) = (self.app.clone(), self.caller.clone(), self.app.work.memory.clone());
        let target = self.model.clone().map_or(Target::Named, Target::Last);
        let named = self.model.clone().unwrap_or_else(|| request.model().to_owned());
        let read = move || {
            let reserved = memory.reserve(Part::Bodies, n_bytes * PARSE_FACTOR).map_err(memory_full)?;
            Ok((request.into_request(&context)?.0, reserved))
        };
        let next = async move {
            let _presence = app.bring_model(&caller.key_holder(), || Some(named.into())).await?;
            generate(&app, &caller, target, UnreadRequest { n_bytes, read }).await
        };
        next.boxed()
    }

    fn fail(&mut self, error: ApiError) -> Poll<Option<AnswerEvent>> {
        self.state = State::Over;
        Poll::Ready(Some(AnswerEvent::Failed(error)))
    }
}

impl AnswerSource for ToolLoop {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<AnswerEvent>> {
        loop {
            match &mut self.state {
                State::Answering(answer) => {
                    let Some(event) = ready!(answer.source().poll_next(cx)) else { return Poll::Ready(None) };
                    let event = match self.session.observe(event) {
                        Observed::Event(event) => event,
                        Observed::Calls(event, calls) => {
                            self.state = State::Calling(run(self.app.clone(), self.caller.clone(), calls));
                            event
                        }
                    };
                    return Poll::Ready(Some(event));
                }
                State::Calling(calls) => {
                    if let Some(Called { call_idx, result, .. }) = ready!(calls.poll_next_unpin(cx)) {
                        let event = self.session.settle(call_idx, result);
                        if let Err(full) = self.memory.cover(self.session.n_bytes()) {
                            return self.fail(memory_full(full));
                        }
                        return Poll::Ready(Some(event));
                    }
                    match self.session.end_turn() {
                        TurnOutcome::Next => self.state = State::Starting(self.start()),
                        TurnOutcome::End(event) => {
                            self.state = State::Over;
                            return Poll::Ready(Some(event));
                        }
                    }
                }
                State::Starting(starting) => match ready!(starting.poll_unpin(cx)) {
                    Ok(started) => {
                        let event =
                            self.session.begin_turn(started.n_prompt_tokens(), started.n_image_tokens);
                        self.state = State::Answering(started.into_stream().answer);
                        return Poll::Ready(Some(event));
                    }
                    Err(error) => return self.fail(error),
                },
                State::Over => return Poll::Ready(None),
            }
        }
    }

    fn n_choices(&self) -> usize {
        1
    }

    fn keep(&mut self, memory: Reservation) {
        if let State::Answering(answer) = &mut self.state {
            answer.source().keep(memory);
        }
    }

    fn count_stream_error(&self) {
        if let State::Answering(answer) = &self.state {
            answer.count_stream_error();
        }
    }

    fn is_away(&self) -> bool {
        matches!(&self.state, State::Answering(answer) if answer.is_away())
    }
}
