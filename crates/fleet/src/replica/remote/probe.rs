//! Probes of a worker: requests of one token, which run a real step there. Does not decide when probes are
//! due.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use throng_core::fleet::health::Probe;
use throng_core::request::{Priority, SamplingParams, TenantId};
use throng_http::awake::within;
use tokio::time::Instant;

use super::connection::Connection;
use super::link::Link;
use super::submit;
use crate::dispatch::HealthReporter;
use crate::replica::{Continuations, ReplicaErrorKind, ReplicaEvent, ReplicaRequest};

/// Timeout of the answer to a probe.
const TIMEOUT: Duration = Duration::from_secs(5);

impl Link {
    /// Starts the probe that is due now, if any, as a separate task.
    pub fn probe_if_due(self: &Arc<Self>) {
        if let Some((connection, reporter, probe)) = self.probe_due() {
            tokio::spawn(probe_once(self.clone(), connection, reporter, probe));
        }
    }
}

async fn probe_once(link: Arc<Link>, connection: Connection, reporter: HealthReporter, probe: Probe) {
    let (began, n_steps) = (Instant::now(), link.n_steps());
    let answer = within(TIMEOUT, one_token(&link, connection)).await;
    // An overloaded worker may not reach the probe in time, but its step counter advances.
    let has_answered = answer.unwrap_or_else(|_| link.n_steps() > n_steps);
    if !has_answered {
        tracing::warn!(worker = link.endpoint.label(), "a worker did not answer a probe");
    }
    reporter.probed(probe, has_answered.then(|| began.elapsed()));
}

/// Whether the worker generates a token, or refuses for lack of room.
async fn one_token(link: &Arc<Link>, connection: Connection) -> bool {
    let request = ReplicaRequest {
        tenant: TenantId("throng probe".into()),
        cache_salt: None,
        session: None,
        cache_marks: Vec::new(),
        priority: Priority::default(),
        prompt: Arc::from([0]),
        media: None,
        sampling: Arc::new(SamplingParams { max_tokens: 1, ..SamplingParams::default() }),
        constraint: None,
        adapter: None,
        continuations: Continuations::New { n: 1 },
        holder: None,
    };
    match submit(connection, request, link.begin(1)).await {
        Ok(mut generation) => loop {
            match generation.next().await {
                Some(ReplicaEvent::Finished { .. }) => return true,
                Some(ReplicaEvent::Failed { .. }) | None => return false,
                Some(_) => {}
            }
        },
        Err(refusal) => matches!(refusal.kind, ReplicaErrorKind::Refused(_) | ReplicaErrorKind::Draining),
    }
}
