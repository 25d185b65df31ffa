//! One worker that is asked for blocks: its connection, and whether it is asked at present. Does not know the
//! engine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use throng_engine::Pull;
use throng_http::awake::within;
use throng_wire::{
    BLOCKS, BlocksRequest, Frame, FrameBuffer, MAX_REQUESTED_BLOCKS, NEWEST_VERSION, VERSION_HEADER,
};
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::Instant;

use crate::replica::{Connection, ConnectionGuard, Endpoint, RequestBody, WorkerAddress};

/// Timeout for connecting, for the head of an answer, and between two pieces of its body. The engine gives a
/// block up after two seconds.
const SILENCE: Duration = Duration::from_millis(1_500);

/// Longest time of one pull, of at most half of the blocks for which the engine has room.
const MOST_TIME: Duration = Duration::from_secs(15);

/// Time for which a worker is not asked after it did not answer.
const REST: Duration = Duration::from_secs(10);

/// Time for which a worker is not asked that is too busy to give blocks in time.
const SHORT_REST: Duration = Duration::from_secs(2);

/// Maximum number of pulls from one worker at a time; the others wait for their turn.
const MAX_PULLS: usize = 2;

/// Time for which a worker is not asked that does not give blocks, or has those of another model.
const LONG_REST: Duration = Duration::from_secs(60);

/// Time after which an unused connection is closed.
const MOST_IDLE: Duration = Duration::from_secs(30);

/// Bytes that a worker may send before they are taken.
const WINDOW_BYTES: u32 = 8 << 20;

/// A worker that is asked for blocks.
#[derive(Debug)]
pub(super) struct Peer {
    endpoint: Endpoint,
    state: Mutex<State>,
    connection: AsyncMutex<Option<Connection>>,
    pulls: Semaphore,
}

#[derive(Debug)]
struct State {
    rests_until: Instant,
    used: Instant,
}

/// Reason why blocks did not come.
enum PullError {
    /// The worker has no more of the blocks.
    Missing,
    /// The worker has no time.
    Busy,
    /// The worker did not answer, or what it sent was damaged.
    Broken(String),
    /// The worker cannot give any.
    Unable(String),
}

impl Peer {
    /// Creates a worker that was not asked yet.
    pub fn new(endpoint: Endpoint) -> Self {
        let now = Instant::now();
        let (state, connection) = (Mutex::new(State { rests_until: now, used: now }), AsyncMutex::default());
        Self { endpoint, state, connection, pulls: Semaphore::new(MAX_PULLS) }
    }

    /// Whether it has this address and name.
    pub fn is(&self, address: &WorkerAddress, server_name: Option<&str>) -> bool {
        self.endpoint.address == *address && self.endpoint.server_name.as_deref() == server_name
    }

    /// Whether it is not asked at present.
    pub fn rests(&self) -> bool {
        Instant::now() < self.state().rests_until
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the blocks of a pull, as many as come.
    pub async fn bring(self: Arc<Self>, mut pull: Pull) {
        // The semaphore is never closed.
        let Ok(_turn) = self.pulls.acquire().await else { return };
        if self.rests() {
            return;
        }
        let asked = within(MOST_TIME, self.ask(&mut pull)).await;
        let (reason, rest) = match asked.unwrap_or(Err(PullError::Busy)) {
            Ok(()) | Err(PullError::Missing) => return,
            Err(PullError::Busy) => {
                self.state().rests_until = Instant::now() + SHORT_REST;
                return;
            }
            Err(PullError::Broken(reason)) => (reason, REST),
            Err(PullError::Unable(reason)) => (reason, LONG_REST),
        };
        let (worker, rest_s) = (self.endpoint.label(), rest.as_secs());
        tracing::warn!(worker, reason, rest_s, "a worker gave no blocks; they are computed");
        self.state().rests_until = Instant::now() + rest;
        *self.connection.lock().await = None;
    }

    async fn ask(self: &Arc<Self>, pull: &mut Pull) -> Result<(), PullError> {
        let broken = |reason: &str| PullError::Broken(reason.to_owned());
        let connection = within(SILENCE, self.connected()).await.map_err(|_| broken("no connection"))??;
        let names = pull.names().take(MAX_REQUESTED_BLOCKS).collect();
        let line = BlocksRequest { layout: pull.layout().clone(), names }.to_line();
        let head = Request::post("/").header(VERSION_HEADER, NEWEST_VERSION);
        let sending = connection.send(head, BLOCKS, RequestBody::of(Bytes::from(line)));
        let answer = within(SILENCE, sending).await.map_err(|_| PullError::Busy)?;
        let answer = answer.map_err(PullError::Broken)?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => return Err(PullError::Busy),
            status => return Err(PullError::Unable(format!("it answered with {status}"))),
        }
        let (mut body, mut frames) = (answer.into_body(), FrameBuffer::default());
        while pull.n_missing() > 0 {
            let piece = tokio::select! {
                biased;
                () = connection.lost() => return Err(broken("the connection was lost")),
                piece = within(SILENCE, body.frame()) => piece.map_err(|_| PullError::Busy)?,
            };
            let Some(piece) = piece else { return Err(PullError::Missing) };
            let piece = piece.map_err(|error| PullError::Broken(error.to_string()))?;
            let Ok(data) = piece.into_data() else { continue };
            frames.push(&data);
            while let Some(frame) =
                frames.next_frame().map_err(|error| PullError::Broken(error.to_string()))?
            {
                match frame {
                    Frame::Layout(layout) => {
                        pull.layout().check(&layout).map_err(|error| PullError::Unable(error.to_string()))?
                    }
                    Frame::CheckedBlock(block) => {
                        if !pull.land(&block.hash, block.bytes) {
                            return Err(broken("it sent another block"));
                        }
                    }
                    Frame::Block(_) | Frame::Unknown => {}
                }
            }
        }
        Ok(())
    }

    /// The connection, which all pulls share.
    async fn connected(self: &Arc<Self>) -> Result<Connection, PullError> {
        self.state().used = Instant::now();
        let mut held = self.connection.lock().await;
        if let Some(connection) = held.as_ref().filter(|connection| !connection.is_lost()) {
            return Ok(connection.clone());
        }
        let connecting = self.endpoint.connect_with(WINDOW_BYTES);
        let (connection, guard) = connecting.await.map_err(PullError::Broken)?;
        *held = Some(connection.clone());
        tokio::spawn(Arc::clone(self).keep(guard));
        Ok(connection)
    }

    /// Keeps a connection until it is lost or was not used for a while.
    async fn keep(self: Arc<Self>, mut guard: ConnectionGuard) {
        loop {
            let idle = self.state().used.elapsed();
            if idle >= MOST_IDLE {
                return;
            }
            tokio::select! {
                () = guard.closed_to_requests() => {
                    // The next pull opens another connection; those that run go on.
                    *self.connection.lock().await = None;
                    tokio::time::sleep(MOST_TIME).await;
                    return;
                }
                () = tokio::time::sleep(MOST_IDLE.saturating_sub(idle)) => {}
            }
        }
    }
}
