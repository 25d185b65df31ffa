//! Follows one worker: connects, reads its description and its status lines until they stop, then
//! reconnects. Does not know routes.

use std::sync::Arc;
use std::time::Duration;

use throng_http::awake::within;
use throng_wire::{DESCRIBE, Description, HEARTBEAT_MS, MAX_DOCUMENT_BYTES, STATUS, Versions, WATCH};
use tokio::time::Instant;

use super::membership::Membership;
use crate::body_lines::BodyLines;
use crate::replica::{Connection, ConnectionGuard, Link};

/// Maximum time without a status line; then the worker counts as lost and its requests go elsewhere.
const MAX_SILENCE: Duration = Duration::from_millis(6 * HEARTBEAT_MS);
/// Maximum time for reading answers that a worker has sent before its end.
const MAX_READING: Duration = Duration::from_secs(60);
/// Interval between round-trip checks. Heartbeats show that the worker can send, not that it can receive,
/// so the gateway requests a small response.
const ROUND_TRIP_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout of a round-trip check.
const MAX_ROUND_TRIP: Duration = Duration::from_millis(1250);
/// Minimum pause before reconnecting to a worker.
const MIN_BACKOFF: Duration = Duration::from_millis(50);
/// Maximum pause before reconnecting to a worker.
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// Interval between log lines about a worker that does not answer.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// Follows a worker. Never returns.
pub(super) async fn follow(membership: Arc<Membership>, link: Arc<Link>) {
    let worker = link.endpoint.label();
    let (mut backoff, mut logged) = (MIN_BACKOFF, Instant::now());
    loop {
        let mut was_up = false;
        match follow_once(&membership, &link, &mut was_up).await {
            Ok(()) => {
                if link.set_ending() {
                    tracing::info!(worker, "a worker ends: its running requests may finish");
                }
            }
            Err(reason) => {
                if link.set_down(&reason) || logged.elapsed() >= REPEAT_INTERVAL {
                    logged = Instant::now();
                    tracing::warn!(worker, reason, "a worker does not answer");
                }
            }
        }
        if was_up {
            backoff = MIN_BACKOFF;
        }
        // Half of the backoff plus a random part of the other half, so that gateways do not reconnect in
        // step.
        tokio::time::sleep(backoff.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}

/// Follows a worker until it takes no further requests on this connection, as announced, or at all. Its
/// running requests keep the connection until they have ended.
async fn follow_once(membership: &Membership, link: &Arc<Link>, was_up: &mut bool) -> Result<(), String> {
    let (connection, guard) = link.endpoint.connect().await?;
    let description: Description = connection.document(DESCRIBE, MAX_DOCUMENT_BYTES).await?;
    let Versions { oldest, newest } = description.versions;
    if description.versions.common(Versions::OWN).is_none() {
        return Err(format!(
            "it speaks the versions {oldest} to {newest} of the protocol, which are not known here"
        ));
    }
    if description.is_ending {
        return Ok(());
    }
    let identity = membership.join(link, &connection, &description).await?;
    let lines = BodyLines::new(Some(connection.get(WATCH).await?), None);
    link.set_up(connection.clone(), identity, &description);
    *was_up = true;
    tracing::info!(
        worker = link.endpoint.label(),
        address = link.endpoint.address.to_string(),
        model = description.names[0],
        fingerprint = description.fingerprint,
        "a worker answers"
    );
    let mut watched = Watched { guard, lines };
    tokio::select! {
        ended = watched.watch(link) => ended?,
        reason = deaf(link, &connection) => return Err(reason),
    }
    tokio::spawn(watched.finish(link.clone()));
    Ok(())
}

/// Completes when the worker no longer receives requests. Records the round trips until then. Readers of
/// the connection notice its other faults.
async fn deaf(link: &Link, connection: &Connection) -> String {
    loop {
        tokio::time::sleep(ROUND_TRIP_INTERVAL).await;
        let asked = Instant::now();
        let answer = within(MAX_ROUND_TRIP, connection.bytes(STATUS, MAX_DOCUMENT_BYTES)).await;
        match answer {
            Ok(Ok(_)) => link.measured(asked.elapsed()),
            Ok(Err(_)) => {}
            Err(_) => return format!("it has not answered for {} ms", MAX_ROUND_TRIP.as_millis()),
        }
    }
}

/// A connection with the status lines that arrive on it. Dropping it fails all requests on the connection.
struct Watched {
    guard: ConnectionGuard,
    lines: BodyLines,
}

impl Watched {
    /// Reads the worker's status lines until it takes no further requests on this connection.
    async fn watch(&mut self, link: &Arc<Link>) -> Result<(), String> {
        let (Self { guard, lines }, mut is_closed) = (self, false);
        loop {
            let line = tokio::select! {
                biased;
                line = next_line(lines) => line?,
                () = guard.closed_to_requests(), if !is_closed => {
                    is_closed = true;
                    continue;
                }
            };
            match line {
                Some(line) => {
                    let status = serde_json::from_slice(&line);
                    link.set_status(status.map_err(|error| format!("its status cannot be read: {error}"))?);
                    // One more line shows that the connection is not lost, and says that the worker drains.
                    if is_closed {
                        return Ok(());
                    }
                    link.probe_if_due();
                }
                None if link.is_draining() => return Ok(()),
                None => return Err("it broke off".to_owned()),
            }
        }
    }

    /// Holds the connection while the worker tells that it works on its requests. A worker that hangs
    /// meanwhile loses them to others.
    async fn finish(mut self, link: Arc<Link>) {
        loop {
            match next_line(&mut self.lines).await {
                Ok(Some(line)) => {
                    if let Ok(status) = serde_json::from_slice::<throng_wire::Status>(&line) {
                        link.set_remaining(status.load);
                    }
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
        // The worker has sent its answers to their end; their readers may be slow.
        let _ = tokio::time::timeout(MAX_READING, link.drained()).await;
    }
}

async fn next_line(lines: &mut BodyLines) -> Result<Option<Vec<u8>>, String> {
    let line = within(MAX_SILENCE, lines.next()).await;
    let line = line.map_err(|_| format!("it has been silent for {} ms", MAX_SILENCE.as_millis()))?;
    line.map_err(|error| error.to_string())
}
