//! One exchange on a connection: the body of its request, and the state of the connection that depends on it.

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
    /// Number of the request on its connection.
    number: usize,
    version: Version,
    has_body: bool,
    body: Mutex<Option<Incoming>>,
    is_body_broken: AtomicBool,
}

/// Reason why the body of a request was not read. The connection closes after the response.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The framing of the body breaks a rule of HTTP or one of the server's bounds.
    #[error("its framing was refused")]
    Refused(Refusal),
    /// The body cannot be taken.
    #[error(transparent)]
    Body(BodyError),
    /// The body did not arrive in time.
    #[error("it did not arrive in time")]
    TimedOut,
    /// The server ends.
    #[error("the server ends")]
    ShuttingDown,
}

/// The state of a connection after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The next request can follow.
    Reusable,
    /// The connection closes, and the response says so.
    Closing,
}

impl Exchange {
    /// Begins the exchange of a request that `connection` has counted already.
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

    /// The refusal of the request's framing, if it was refused on the way in.
    pub fn refused(&self) -> Option<Refusal> {
        if self.version >= Version::HTTP_2 {
            return None;
        }
        self.connection.refusal(self.number)
    }

    /// Whether a body was sent, be it read or not.
    pub fn has_body(&self) -> bool {
        self.has_body
    }

    /// Asks that the connection closes after this request's response.
    pub fn close_connection(&self) {
        self.connection.close_when_done();
    }

    /// Asks that the answer is not lost to a reset when the connection closes.
    pub fn linger(&self) {
        if self.version < Version::HTTP_2 {
            self.connection.set_linger();
        }
    }

    /// Waits until the client has said that it will send no more on its connection.
    pub async fn input_ended(&self) {
        self.connection.input_ended().await;
    }

    /// Reads the whole body, at most `max_bytes` within `timeout` and before the server is `ending`. What has
    /// arrived is reserved in `memory`.
    ///
    /// # Errors
    /// Returns a [`ReadError`], after which the connection is closed.
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

    /// Brings the connection into a clear state before the response: the body read to its end, or the
    /// connection about to close.
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

    /// Has the connection go on as a WebSocket connection once the response to its handshake has been sent.
    /// `session` runs in the connection's place, within its limits: the server waits for its end.
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

    /// Takes the body, for those who read it while they answer; `None` once it has been taken. Bounds are
    /// theirs.
    pub fn stream_body(&self) -> Option<Incoming> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
