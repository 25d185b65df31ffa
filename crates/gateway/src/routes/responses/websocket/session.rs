//! An open connection: takes messages, sends events, and ends because of the client, its key, its age or the
//! server. Does not know the content of messages.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use http::{Method, StatusCode};
use throng_api::ApiError;
use throng_api::responses::{ClientMessage, Lane, Lanes, error_message};
use throng_http::Phase;
use throng_http::body::HeldBody;
use throng_http::memory::Part;
use throng_http::websocket::{CloseCode, Ended, WebSocket};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Opening;
use super::step::{Step, begin};
use crate::app::App;
use crate::caller::Caller;
use crate::rejection::memory_full;
use crate::turns::{LanePasts, MessageTurn};
use throng_auth::Tenant;
use throng_http::retry_after::retry_after_s;

/// Interval between checks of key and age.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of unreadable messages within the time at which a client is disconnected.
const MAX_FAULTS: u32 = 20;
const FAULT_TIME: Duration = Duration::from_secs(10);

/// An open connection.
pub(super) struct Session {
    app: Arc<App>,
    socket: WebSocket,
    opening: Opening,
    opened: Instant,
    /// Time of the last message or event.
    last_used: Instant,
    /// Number of unreadable messages, and the start of the period in which they are counted.
    faults: (u32, Instant),
    pasts: Arc<LanePasts>,
    lanes: Lanes<Waiting>,
    running: FuturesUnordered<BoxFuture<'static, Step>>,
    phase: watch::Receiver<Phase>,
    /// Reason for which no more requests begin.
    closing: Option<Closing>,
}

/// A request that waits for its lane.
struct Waiting {
    body: HeldBody,
    generates: bool,
}

/// Close of a connection, which is due once the events of its running responses have been sent.
struct Closing {
    /// Error for requests that come too late.
    refusal: ApiError,
    /// Whether the connection sends the error without a request.
    is_told: bool,
    code: CloseCode,
    reason: &'static str,
}

impl Session {
    /// Begins to serve a connection.
    pub fn new(app: Arc<App>, socket: WebSocket, opening: Opening) -> Self {
        let (pasts, phase) = (LanePasts::new(app.work.memory.clone()), app.lifecycle.phase.subscribe());
        let now = Instant::now();
        Self {
            app,
            socket,
            opening,
            opened: now,
            last_used: now,
            faults: (0, now),
            pasts: Arc::new(pasts),
            lanes: Lanes::default(),
            running: FuturesUnordered::new(),
            phase,
            closing: None,
        }
    }

    /// Serves the connection to its end.
    pub async fn run(mut self) {
        let ended = match self.serve().await {
            Ok(Closing { code, reason, .. }) => Ended::Failed(code, reason),
            Err(ended) => ended,
        };
        // Responses that still run have no reader any more.
        self.running.clear();
        self.socket.end(ended).await;
    }

    async fn serve(&mut self) -> Result<Closing, Ended> {
        let mut ticks = interval(LOOK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.begin_due();
            if let Some(closing) = self.closing.take_if(|_| self.running.is_empty()) {
                if closing.is_told {
                    self.tell(&closing.refusal, &Lane::default()).await?;
                }
                return Ok(closing);
            }
            let is_serving = self.closing.is_none();
            tokio::select! {
                received = self.socket.receive() => self.take(received?).await?,
                Some(step) = self.running.next() => self.step(step).await?,
                () = server_ends(&mut self.phase), if is_serving => {
                    let (is_told, code, reason) = (false, CloseCode::Away, "the server ends");
                    let refusal = ApiError::shutting_down(retry_after_s());
                    self.close(Closing { refusal, is_told, code, reason }).await?;
                }
                _ = ticks.tick(), if is_serving => self.look().await?,
            }
        }
    }

    /// Begins the requests whose turn it is.
    fn begin_due(&mut self) {
        while self.closing.is_none()
            && let Some((lane, waiting)) = self.lanes.start_next()
        {
            let caller = Arc::new(self.opening.caller.of_message(&self.opening.headers));
            let message = MessageTurn { lane, generates: waiting.generates, pasts: self.pasts.clone() };
            match self.key_holder() {
                Ok(tenant) => {
                    caller.set_tenant(tenant);
                    let begun = Begun { caller: caller.clone(), path: self.opening.path.clone() };
                    let app = self.app.clone();
                    let answering = async move {
                        let step = begin(app, caller, waiting.body, message).await;
                        begun.record(&step);
                        step
                    };
                    self.running.push(answering.boxed());
                }
                Err(error) => {
                    let refused = Step::Refused(message.lane, error);
                    self.running.push(std::future::ready(refused).boxed());
                }
            }
        }
    }

    /// The holder of the key that the connection was opened with, as the key is now.
    fn key_holder(&self) -> Result<Tenant, ApiError> {
        let tenant = self.app.policy.keys.authenticate(&self.opening.headers)?;
        if tenant.id != self.opening.caller.tenant() || tenant.is_operator {
            return Err(ApiError::invalid_api_key());
        }
        Ok(tenant)
    }

    /// Takes a message of the client.
    async fn take(&mut self, text: Bytes) -> Result<(), Ended> {
        self.last_used = Instant::now();
        let ClientMessage { lane, generates } = match ClientMessage::of(&text) {
            Ok(message) => message,
            Err(error) => {
                self.tell(&error, &Lane::default()).await?;
                return self.note_fault();
            }
        };
        if let Some(closing) = &self.closing {
            let refusal = closing.refusal.clone();
            return self.tell(&refusal, &lane).await;
        }
        let queued = self.app.work.memory.reserve(Part::Bodies, text.len()).map_err(memory_full);
        let queued = queued.and_then(|memory| {
            let body = HeldBody { bytes: text, memory };
            self.lanes.push(lane.clone(), Waiting { body, generates })
        });
        match queued {
            Ok(()) => Ok(()),
            Err(error) => self.tell(&error, &lane).await,
        }
    }

    /// Counts an unreadable message.
    fn note_fault(&mut self) -> Result<(), Ended> {
        let (n_faults, since) = &mut self.faults;
        if since.elapsed() > FAULT_TIME {
            (*n_faults, *since) = (0, Instant::now());
        }
        *n_faults += 1;
        if *n_faults < MAX_FAULTS {
            return Ok(());
        }
        Err(Ended::Failed(CloseCode::Policy, "too many messages cannot be read"))
    }

    /// Handles the next step of a response.
    async fn step(&mut self, step: Step) -> Result<(), Ended> {
        self.last_used = Instant::now();
        match step {
            Step::Event(answering, event) => {
                self.socket.send(event).await?;
                self.running.push(answering.next().boxed());
            }
            Step::Ended(lane) => self.lanes.end(&lane),
            Step::Refused(lane, error) => {
                self.lanes.end(&lane);
                self.tell(&error, &lane).await?;
            }
        }
        Ok(())
    }

    async fn tell(&mut self, error: &ApiError, lane: &Lane) -> Result<(), Ended> {
        self.socket.send(error_message(error, lane).into()).await
    }

    /// Looks whether the key still is valid, and the connection not too old.
    async fn look(&mut self) -> Result<(), Ended> {
        let server = &self.app.config.server;
        let max_age = Duration::from_secs(server.websocket_max_age_s);
        let idle_timeout = Duration::from_secs(server.websocket_idle_timeout_s);
        let closing = if let Err(error) = self.key_holder() {
            Closing { refusal: error, is_told: true, code: CloseCode::Policy, reason: "the key is not valid" }
        } else if self.opened.elapsed() >= max_age {
            let refusal = ApiError::websocket_connection_limit_reached(max_age.as_secs().div_ceil(60));
            Closing { refusal, is_told: true, code: CloseCode::Away, reason: "the connection is too old" }
        } else if self.lanes.is_idle() && self.last_used.elapsed() >= idle_timeout {
            let refusal = ApiError::websocket_connection_limit_reached(idle_timeout.as_secs().div_ceil(60));
            Closing { refusal, is_told: false, code: CloseCode::Away, reason: "the connection was not used" }
        } else {
            return Ok(());
        };
        self.close(closing).await
    }

    /// Begins no more requests, refuses waiting ones, and closes once the events of the running ones have
    /// been sent.
    async fn close(&mut self, closing: Closing) -> Result<(), Ended> {
        let refusal = closing.refusal.clone();
        self.closing = Some(closing);
        for (lane, _) in self.lanes.drop_waiting() {
            self.tell(&refusal, &lane).await?;
        }
        Ok(())
    }
}

async fn server_ends(phase: &mut watch::Receiver<Phase>) {
    let _ = phase.wait_for(|phase| *phase >= Phase::HandedOver).await;
}

/// A request that has begun, for its record.
struct Begun {
    caller: Arc<Caller>,
    path: axum::extract::MatchedPath,
}

impl Begun {
    /// Notes how the request was answered.
    fn record(self, step: &Step) {
        let (status, code) = match step {
            Step::Refused(_, error) => (error.status(), Some(error.code())),
            _ => (StatusCode::OK, None),
        };
        self.caller.record_answer(Method::GET, Some(self.path), status, code);
    }
}
