//! Tells a client that has sent all it wanted and waits for its answer (`shutdown(SHUT_WR)`) from one that
//! has closed its socket: both look alike until something is sent, which a closed socket answers with a
//! reset. What is sent are the first bytes of the response, ahead of the rest; once a stream is under way,
//! its pings do the same. Does not know what the response says.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::Interest;
use tokio::sync::watch;

use super::socket::Socket;

/// Beginning of every response to an HTTP/1 request: as many probes can be sent before it.
const RESPONSE_START: &[u8] = b"HTTP/1.";
/// A second byte is sent this long after the first, a third four times as long after the second, and so on:
/// what is computed for a client that leaves later is a small multiple of what it has waited for.
const FIRST_DISTANCE: Duration = Duration::from_millis(250);
const DISTANCE_GROWTH: u32 = 4;
/// Maximum silence of a stream whose client sends no more: only writing shows whether the client still reads.
pub const HALF_CLOSED_PING_INTERVAL: Duration = Duration::from_millis(250);

/// The readiness that includes the end of the input and, where the system has one, excludes unread input.
#[cfg(any(target_os = "linux", target_os = "android"))]
const END_OF_INPUT: Interest = Interest::PRIORITY;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const END_OF_INPUT: Interest = Interest::READABLE;
const END_OF_INPUT_RECHECK: Duration = Duration::from_millis(100);

/// State of a connection's requests and its output that probing reads.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    /// Whether a request of HTTP/1 is under way whose response has not begun.
    awaits_response: AtomicBool,
    n_sent_ahead: AtomicUsize,
    /// Whether something was written that the kernel has not taken whole.
    is_mid_write: AtomicBool,
    requests: watch::Sender<usize>,
    input_ended: watch::Sender<bool>,
}

impl Presence {
    /// A request of HTTP/1 has arrived.
    pub fn request_begins(&self) {
        self.awaits_response.store(true, Ordering::Release);
        self.requests.send_modify(|n| *n += 1);
    }

    /// Its response is about to be written.
    pub fn response_begins(&self) {
        self.awaits_response.store(false, Ordering::Release);
    }

    /// Notes whether part of what was written is still to be taken by the kernel.
    pub fn set_mid_write(&self, mid_write: bool) {
        self.is_mid_write.store(mid_write, Ordering::Release);
    }

    /// Whether part of what was written is still to be taken by the kernel.
    pub fn is_mid_write(&self) -> bool {
        self.is_mid_write.load(Ordering::Acquire)
    }

    /// Bytes of a response that begins with `first` that have been sent already.
    ///
    /// # Errors
    /// When it begins otherwise.
    pub fn take_sent_ahead(&self, first: &[u8]) -> io::Result<Option<usize>> {
        match self.n_sent_ahead.swap(0, Ordering::AcqRel) {
            0 => Ok(None),
            n if first.starts_with(&RESPONSE_START[..n]) => Ok(Some(n)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Waits until the client has said that it will send no more.
    pub async fn input_ended(&self) {
        let mut ended = self.input_ended.subscribe();
        if ended.wait_for(|ended| *ended).await.is_err() {
            std::future::pending().await
        }
    }

    fn probe(&self, socket: &Socket) {
        if !self.awaits_response.load(Ordering::Acquire) || self.is_mid_write() {
            return;
        }
        let n_sent = self.n_sent_ahead.load(Ordering::Acquire);
        if let Some(byte) = RESPONSE_START.get(n_sent..=n_sent)
            && matches!(socket.try_write(byte), Ok(1))
        {
            self.n_sent_ahead.store(n_sent + 1, Ordering::Release);
        }
    }
}

/// Completes when the client is known to be unable to read an answer. Must run in the task of the connection:
/// a response must not begin while a probe is sent. A client of an encrypted connection that sends no more
/// has gone: a probe would break its records, and clients of HTTPS do not close one side only.
pub(crate) async fn client_gone(socket: &Socket, presence: &Presence, is_encrypted: bool) {
    tokio::select! {
        _ = socket.ready(Interest::ERROR) => {}
        () = probe_after_input(socket, presence, is_encrypted) => {}
    }
}

async fn probe_after_input(socket: &Socket, presence: &Presence, is_encrypted: bool) {
    while socket.ready(END_OF_INPUT).await.is_ok_and(|ready| !ready.is_read_closed()) {
        tokio::time::sleep(END_OF_INPUT_RECHECK).await;
    }
    presence.input_ended.send_replace(true);
    if is_encrypted {
        return;
    }
    let mut requests = presence.requests.subscribe();
    loop {
        let mut distance = FIRST_DISTANCE;
        loop {
            presence.probe(socket);
            if socket.is_closed() {
                return;
            }
            tokio::select! {
                _ = requests.changed() => break,
                () = tokio::time::sleep(distance) => distance = distance.saturating_mul(DISTANCE_GROWTH),
            }
        }
    }
}
