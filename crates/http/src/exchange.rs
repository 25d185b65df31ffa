//! One exchange on a connection: the body of its request, and how that affects the connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::Version;
use hyper::body::{Body, Incoming};
use hyper::upgrade::OnUpgrade;

use crate::awake::within;
use crate::body::{BodyError, HeldBody, collect, drain};
use crate::connection::ConnectionState;
use crate::memory::{MemoryBudget, Part};
use crate::refusal::Refusal;
use crate::websocket::{Settings, WebSocket};

/// A request on its connection until its response has been sent.
#[derive(Debug)]
pub struct Exchange {
    connection: Arc<ConnectionState>,
    /// Number of the request on its connection, from 1.
    number: usize,
    version: Version,
    has_body: bool,
    body: Mutex<Option<Incoming>>,
    is_body_broken: AtomicBool,
}

/// Reason why the body of a request was not read. The connection closes after the response.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The framing of the body violates HTTP or one of the server's limits.
    #[error("its framing was refused")]
    Refused(Refusal),
    /// The body exceeds a limit or is incomplete.
    #[error(transparent)]
    Body(BodyError),
    /// The body did not arrive in time.
    #[error("it did not arrive in time")]
    TimedOut,
    /// The server is shutting down.
    #[error("the server ends")]
    ShuttingDown,
}

/// State of a connection after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The next request can follow.
    Reusable,
    /// The connection closes, as the response announces.
    Closing,
}

impl Exchange {
    /// Starts the exchange of a request that `connection` has already counted.
    pub fn new(version: Version, body: Option<Incoming>, connection: Arc<ConnectionState>) -> Self {
        let has_body = body.as_ref().is_some_and(|body| !body.is_end_stream());
        let number = connection.n_started();
        let body = Mutex::new(body);
        Self { connection, number, version, has_body, body, is_body_broken: AtomicBool::new(false) }
    }

    /// The address of the client; `unix` on a Unix socket.
    pub fn client(&self) -> &str {
        self.connection.client()
    }

    /// The refusal of the request's framing, if it was refused.
    pub fn refused(&self) -> Option<Refusal> {
        if self.version >= Version::HTTP_2 {
            return None;
        }
        self.connection.refusal(self.number)
    }

    /// Whether the request has a body, read or not.
    pub fn has_body(&self) -> bool {
        self.has_body
    }

    /// Closes the connection after this request's response.
    pub fn close_connection(&self) {
        self.connection.close_when_done();
    }

    /// Protects the response from a reset when the connection closes.
    pub fn linger(&self) {
        if self.version < Version::HTTP_2 {
            self.connection.set_linger();
        }
    }

    /// Waits until the client has closed its sending side.
    pub async fn input_ended(&self) {
        self.connection.input_ended().await;
    }

    /// Reads the whole body, at most `max_bytes`, within `timeout` and before the server is `ending`.
    /// Reserves `memory` for the bytes that have arrived.
    ///
    /// # Errors
    /// Any [`ReadError`], after which the connection is closed.
    pub async fn read_body(
        &self,
        max_bytes: usize,
        timeout: Duration,
        memory: &Arc<MemoryBudget>,
        ending: impl Future<Output = ()>,
    ) -> Result<HeldBody, ReadError> {
        let mut held = HeldBody { bytes: Bytes::new(), memory: memory.reservation(Part::Bodies) };
        let Some(mut body) = self.stream_body() else { return Ok(held) };
        self.connection.set_reading_body(true);
        let result = tokio::select! {
            biased;
            read = within(timeout, collect(&mut body, max_bytes, &mut held.memory)) => {
                read.map_or(Err(ReadError::TimedOut), |read| read.map_err(ReadError::Body))
            }
            () = ending => Err(ReadError::ShuttingDown),
        };
        self.connection.set_reading_body(false);
        let result = result.map_err(|error| self.refused().map_or(error, ReadError::Refused));
        if result.is_err() {
            self.is_body_broken.store(true, Ordering::Release);
        }
        held.bytes = result?;
        Ok(held)
    }

    /// Prepares the connection for the response: reads the body to its end, or marks the connection for
    /// closing.
    pub async fn settle_body(&self) -> Settled {
        let unread = self.stream_body();
        let is_broken = self.is_body_broken.load(Ordering::Acquire);
        let is_drained = match unread {
            None => true,
            Some(body) => drain(body).await,
        };
        let is_refused = self.connection.is_upgrade_refused();
        if (is_drained && !is_broken && !is_refused) || self.version >= Version::HTTP_2 {
            return Settled::Reusable;
        }
        self.linger();
        Settled::Closing
    }

    /// Continues the connection as a WebSocket once the response to its handshake has been sent. `session`
    /// runs in the connection's place, within its limits; the server waits for its end.
    pub fn go_on_as_websocket<F>(
        &self,
        upgrade: OnUpgrade,
        settings: Settings,
        session: impl FnOnce(WebSocket) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send,
    {
        let connection = self.connection.clone();
        let continuation = async move {
            if let Ok(socket) = WebSocket::open(upgrade, connection, settings).await {
                session(socket).await;
            }
        };
        self.connection.go_on_as(Box::pin(continuation));
    }

    /// Takes the body, for a handler that reads it while answering; `None` once it has been taken. The
    /// handler applies the limits.
    pub fn stream_body(&self) -> Option<Incoming> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
