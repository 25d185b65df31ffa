//! One response of a connection: from its message to its events, one at a time. Does not know the connection.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http_body_util::BodyExt;
use throng_api::ApiError;
use throng_api::responses::Lane;
use throng_http::body::HeldBody;
use throng_http::memory::{MemoryBudget, Part, Reservation};

use super::super::super::generate::answer_message;
use super::super::super::json_body::JsonBody;
use crate::app::App;
use crate::caller::Caller;
use crate::turns::MessageTurn;

/// Next step of a response.
#[derive(Debug)]
pub(super) enum Step {
    /// The next event; more may follow.
    Event(Answering, Bytes),
    /// The end of a stream, after its last event.
    Ended(Lane),
    /// A refusal: it does not begin.
    Refused(Lane, ApiError),
}

/// A response that sends its events.
#[derive(Debug)]
pub(super) struct Answering {
    lane: Lane,
    events: Body,
    /// Received bytes of events that were not sent yet.
    waiting: BytesMut,
    /// Number of these bytes that belong to an incomplete event.
    n_scanned: usize,
    memory: Reservation,
}

/// Begins the response that a message requests.
pub(super) async fn begin(app: Arc<App>, caller: Arc<Caller>, body: HeldBody, message: MessageTurn) -> Step {
    let lane = message.lane.clone();
    let memory = app.work.memory.clone();
    let answering = AssertUnwindSafe(answer(app, caller.clone(), body, message)).catch_unwind();
    match answering.await {
        Ok(Ok(response)) => Answering::new(lane, response, &memory).next().await,
        Ok(Err(error)) => Step::Refused(lane, error),
        Err(_) => {
            tracing::error!(request = caller.id_text(), "a handler panicked");
            Step::Refused(lane, ApiError::internal_error(caller.id_text()))
        }
    }
}

async fn answer(
    app: Arc<App>,
    caller: Arc<Caller>,
    body: HeldBody,
    message: MessageTurn,
) -> Result<Response, ApiError> {
    let body = JsonBody::of_message(&app, caller, body, message).await?;
    let turn = body.turn().cloned();
    let answered = answer_message(app, body).await;
    if let (Err(_), Some(turn)) = (&answered, turn) {
        turn.forget();
    }
    answered
}

impl Answering {
    fn new(lane: Lane, response: Response, memory: &Arc<MemoryBudget>) -> Self {
        let (events, memory) = (response.into_body(), memory.reservation(Part::Sockets));
        Self { lane, events, waiting: BytesMut::new(), n_scanned: 0, memory }
    }

    /// Waits for the next event.
    pub async fn next(mut self) -> Step {
        loop {
            if let Some(n) = self.waiting[self.n_scanned..].iter().position(|&byte| byte == b'\n') {
                let mut event = self.waiting.split_to(self.n_scanned + n + 1);
                self.memory.give_back(event.len());
                self.n_scanned = 0;
                event.truncate(event.len() - 1);
                return Step::Event(self, event.freeze());
            }
            self.n_scanned = self.waiting.len();
            let Some(Ok(frame)) = self.events.frame().await else { return Step::Ended(self.lane) };
            if let Ok(data) = frame.into_data() {
                self.memory.add_always(data.len());
                self.waiting.extend_from_slice(&data);
            }
        }
    }
}
