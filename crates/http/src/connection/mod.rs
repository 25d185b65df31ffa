//! State that a connection's socket (deadlines) and its requests (progress, closing) share. Does not know
//! routes or how requests are served.

mod presence;
mod socket;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use self::presence::HALF_CLOSED_PING_INTERVAL;
pub(crate) use self::presence::client_gone;
pub(crate) use self::socket::Socket;

use self::presence::Presence;
use crate::refusal::Refusal;

/// Time for the rest of a half-received request when the server shuts down.
pub const HALF_SENT_GRACE: Duration = Duration::from_secs(1);
/// Maximum bytes of a response frame: h2 holds a frame as a whole until the peer's window has room for it.
pub const MAX_FRAME_BYTES: usize = 16 << 10;

/// Continuation of an upgraded connection.
struct Continuation(BoxFuture<'static, ()>);

impl std::fmt::Debug for Continuation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Continuation")
    }
}

/// State shared by a connection's socket, its task and its requests.
#[derive(Debug, Default)]
pub struct ConnectionState {
    client: String,
    n_in_flight: AtomicUsize,
    n_started: AtomicUsize,
    reading_body: AtomicBool,
    /// Whether part of a request's head has arrived.
    reading_head: AtomicBool,
    /// Start of the server's shutdown.
    ending: OnceLock<Instant>,
    linger: AtomicBool,
    close: Notify,
    refusal: OnceLock<(usize, Refusal)>,
    end: Notify,
    n_frames_given: AtomicUsize,
    /// Whether a request for an upgrade was passed on.
    awaits_upgrade: AtomicBool,
    is_upgraded: AtomicBool,
    /// Continuation of the connection after the response that upgrades it.
    continuation: Mutex<Option<Continuation>>,
    /// Detection whether the client is still connected.
    pub(crate) presence: Presence,
}

impl ConnectionState {
    /// Creates the state of a connection with this client.
    pub(crate) fn new(client: String) -> Self {
        Self { client, ..Self::default() }
    }

    /// Client for the log: the address that connected, which may be a proxy's.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// Number of requests whose response has not been sent completely.
    pub(crate) fn n_in_flight(&self) -> usize {
        self.n_in_flight.load(Ordering::Acquire)
    }

    /// Number of requests so far.
    pub fn n_started(&self) -> usize {
        self.n_started.load(Ordering::Acquire)
    }

    /// Whether a handler is waiting for more of its request's body.
    pub(crate) fn is_reading_body(&self) -> bool {
        self.reading_body.load(Ordering::Acquire)
    }

    /// Sets whether a handler is waiting for its request's body.
    pub fn set_reading_body(&self, reading: bool) {
        self.reading_body.store(reading, Ordering::Release);
    }

    /// Whether a request's head has arrived only in part.
    pub(crate) fn is_reading_head(&self) -> bool {
        self.reading_head.load(Ordering::Acquire)
    }

    /// Sets whether a request's head has arrived only in part.
    pub(crate) fn set_reading_head(&self, reading: bool) {
        self.reading_head.store(reading, Ordering::Release);
    }

    /// Records the start of the server's shutdown, which limits the time for half-received requests.
    pub(crate) fn set_ending(&self) {
        self.ending.get_or_init(Instant::now);
    }

    /// Start of the server's shutdown.
    pub(crate) fn ending(&self) -> Option<Instant> {
        self.ending.get().copied()
    }

    /// Whether the client may still be sending when the socket closes.
    pub(crate) fn lingers(&self) -> bool {
        self.linger.load(Ordering::Acquire)
    }

    /// Makes the socket read, for a moment, the client's remaining input before it closes: a reset could
    /// otherwise discard the response.
    pub fn set_linger(&self) {
        self.linger.store(true, Ordering::Release);
    }

    /// Records why the connection's input ends with the request of this number, counted from 1. Only the
    /// first call counts.
    pub(crate) fn refuse(&self, number: usize, refusal: Refusal) {
        let _ = self.refusal.set((number, refusal));
    }

    /// Reason why the head or the body of the request of this number was refused.
    pub fn refusal(&self, number: usize) -> Option<Refusal> {
        self.refusal.get().filter(|(refused, _)| *refused == number).map(|(_, refusal)| *refusal)
    }

    /// Waits until the client has closed its sending side.
    pub async fn input_ended(&self) {
        self.presence.input_ended().await;
    }

    /// Closes the connection once all responses have been sent.
    pub fn close_when_done(&self) {
        self.close.notify_one();
    }

    /// Closes the connection immediately.
    pub(crate) fn end_now(&self) {
        self.end.notify_one();
    }

    /// Waits for [`Self::end_now`].
    pub(crate) async fn end_requested(&self) {
        self.end.notified().await;
    }

    /// Number of response heads and body frames passed on for sending.
    pub(crate) fn n_frames_given(&self) -> usize {
        self.n_frames_given.load(Ordering::Relaxed)
    }

    /// Counts a frame passed on for sending.
    pub(crate) fn count_given_frame(&self) {
        self.n_frames_given.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a request asks for another protocol: until that is decided, nothing more is read.
    pub(crate) fn await_upgrade(&self) {
        self.awaits_upgrade.store(true, Ordering::Release);
    }

    /// Whether a request asked for another protocol and was refused it.
    pub(crate) fn is_upgrade_refused(&self) -> bool {
        self.awaits_upgrade.load(Ordering::Acquire) && !self.is_upgraded()
    }

    /// Whether the connection uses another protocol than HTTP now.
    pub(crate) fn is_upgraded(&self) -> bool {
        self.is_upgraded.load(Ordering::Acquire)
    }

    /// Marks the connection as upgraded: once the response has been sent, `continuation` runs in place of
    /// HTTP.
    pub(crate) fn go_on_as(&self, continuation: BoxFuture<'static, ()>) {
        self.is_upgraded.store(true, Ordering::Release);
        *self.continuation.lock().unwrap_or_else(PoisonError::into_inner) = Some(Continuation(continuation));
    }

    /// Takes the continuation of an upgraded connection.
    pub(crate) fn take_continuation(&self) -> Option<BoxFuture<'static, ()>> {
        let continuation = self.continuation.lock().unwrap_or_else(PoisonError::into_inner).take();
        continuation.map(|continuation| continuation.0)
    }

    /// Waits for [`Self::close_when_done`].
    pub(crate) async fn close_requested(&self) {
        self.close.notified().await;
    }
}

/// A running request; dropping it means that its response has been sent or abandoned.
#[derive(Debug)]
pub struct InFlight {
    /// State of the connection.
    pub state: std::sync::Arc<ConnectionState>,
}

impl InFlight {
    /// Starts a request of the connection.
    pub(crate) fn begin(state: &std::sync::Arc<ConnectionState>, version: http::Version) -> Self {
        if version < http::Version::HTTP_2 {
            state.presence.request_begins();
        }
        state.n_started.fetch_add(1, Ordering::AcqRel);
        state.n_in_flight.fetch_add(1, Ordering::AcqRel);
        Self { state: state.clone() }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.state.n_in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}
