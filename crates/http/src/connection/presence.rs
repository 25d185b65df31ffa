//! Distinguishes a client that has closed only its sending side and waits for the answer
//! (`shutdown(SHUT_WR)`) from one that has closed its socket. Both look alike until data is sent, which a
//! closed socket answers with a reset. The probes are the first bytes of the response, sent ahead of the
//! rest; in a running stream, its pings serve as probes. Does not know the response.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::Interest;
use tokio::sync::watch;

use super::socket::Socket;

/// Start of every response to an HTTP/1 request; each of its bytes can serve as one probe.
const RESPONSE_START: &[u8] = b"HTTP/1.";
/// Delay of the second probe after the first; each further delay is four times as long. The computation for a
/// disconnected client is therefore a small multiple of the time it had waited.
const FIRST_DISTANCE: Duration = Duration::from_millis(250);
const DISTANCE_GROWTH: u32 = 4;
/// Maximum silence of a stream whose client has closed its sending side: only writing shows whether the
/// client still reads.
pub const HALF_CLOSED_PING_INTERVAL: Duration = Duration::from_millis(250);

/// Readiness that includes the end of input and, if the system supports it, excludes unread input.
#[cfg(any(target_os = "linux", target_os = "android"))]
const END_OF_INPUT: Interest = Interest::PRIORITY;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const END_OF_INPUT: Interest = Interest::READABLE;
const END_OF_INPUT_RECHECK: Duration = Duration::from_millis(100);

/// State of a connection's requests and output for probing.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    /// Whether an HTTP/1 request is running whose response has not started.
    awaits_response: AtomicBool,
    n_sent_ahead: AtomicUsize,
    /// Whether the kernel has accepted only part of the written bytes.
    is_mid_write: AtomicBool,
    requests: watch::Sender<usize>,
    input_ended: watch::Sender<bool>,
}

impl Presence {
    /// Records the arrival of an HTTP/1 request.
    pub fn request_begins(&self) {
        self.awaits_response.store(true, Ordering::Release);
        self.requests.send_modify(|n| *n += 1);
    }

    /// Records that the response is about to be written.
    pub fn response_begins(&self) {
        self.awaits_response.store(false, Ordering::Release);
    }

    /// Sets whether the kernel has accepted only part of the written bytes.
    pub fn set_mid_write(&self, mid_write: bool) {
        self.is_mid_write.store(mid_write, Ordering::Release);
    }

    /// Whether the kernel has accepted only part of the written bytes.
    pub fn is_mid_write(&self) -> bool {
        self.is_mid_write.load(Ordering::Acquire)
    }

    /// Takes the number of bytes already sent of a response that starts with `first`.
    ///
    /// # Errors
    /// When the response starts differently.
    pub fn take_sent_ahead(&self, first: &[u8]) -> io::Result<Option<usize>> {
        match self.n_sent_ahead.swap(0, Ordering::AcqRel) {
            0 => Ok(None),
            n if first.starts_with(&RESPONSE_START[..n]) => Ok(Some(n)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Waits until the client has closed its sending side.
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

/// Completes when the client can certainly not read a response. Must run in the connection's task, so that no
/// response starts while a probe is sent. Over TLS, an end of input counts as a disconnection: a probe would
/// corrupt the records, and HTTPS clients do not close only their sending side.
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
