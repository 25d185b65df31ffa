//! `throng gateway`: answers requests over HTTP without a model of its own, until a signal ends it. Does not
//! compute.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use throng_gateway::{Gateway, Secret};

use super::serve::{address, database, fit_connections, issuer, limits, listen, process_facts, told_to_end};
use crate::args::GatewayArgs;
use crate::config::{Settings, fleet};
use crate::observability;
use crate::process::core_dumps;
use crate::process::handover;
use crate::process::line_queue::{LineFormat, LineQueue};
use crate::process::output;
use crate::process::signals::Signals;
use crate::process::systemd;
use crate::recording::Recording;
use crate::usage_error::UsageError;

/// Maximum time that a successor process waits for its workers and engines before it serves.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);
/// Maximum time that the process waits at exit until standard output is written.
const OUTPUT_LIMIT: Duration = Duration::from_secs(1);

/// Runs the command.
///
/// # Errors
/// When the settings are invalid or the address is in use.
pub async fn run(arguments: &GatewayArgs) -> Result<()> {
    let signals = Signals::listen().context("cannot receive signals")?;
    let Settings { mut gateway, worker, replicas, .. } = Settings::of(&arguments.as_serve())?;
    let replicas = fleet::replicas(replicas, arguments);
    if replicas.is_empty() {
        let fault = "no replica is named: --replica throng://HOST:PORT or https://HOST/v1, or [[replica]] in the file of --config";
        return Err(UsageError(fault.to_owned()).into());
    }
    gateway.routing.policy = arguments.routing.unwrap_or(gateway.routing.policy);
    gateway.routing.region = arguments.region.clone().or(gateway.routing.region);
    gateway.routing.check().map_err(UsageError)?;
    fit_connections(&mut gateway.server);
    core_dumps::forbid();
    let (server, is_encrypted) = (gateway.server.clone(), gateway.tls.is_some());
    let access = gateway.access.clone();
    let observers = observability::observers(&gateway.observability)?;
    let record = gateway.observability.record.clone();
    let (gateway, loading) = Gateway::loading(gateway, process_facts("none".to_owned()))?;
    if let Some(path) = record {
        loading.record(Arc::new(Recording::start(&path, None)?));
    }
    let gateway = gateway.observed_by(observers);
    let ledger = database::follow(&access, &loading).await?;
    let limits = limits::share(&loading)?;
    issuer::follow(&access, &loading);
    let token = arguments.worker_token.as_ref().map(Secret::new).or(worker.token);
    let fleet =
        loading.start_fleet(&replicas, token.as_ref()).map_err(|error| UsageError(error.to_string()))?;
    let (listener, mut listening) = listen::listen(&server).await?;
    let gateway = listen::listen_for_operator(gateway, &access, &mut listening).await?;
    let gateway = listen::listen_for_ollama(gateway, (&server, &access), &mut listening).await?;
    let out = LineQueue::start("throng-out", LineFormat::Text, output::unlocked_stdout())
        .context("cannot start a thread")?;
    let address = address(&listening.place, is_encrypted);
    let replicas = match fleet.n_replicas() {
        (n, 0) => format!("{n} replicas"),
        (0, _) => "the replicas that are found".to_owned(),
        (n, _) => format!("{n} replicas and those that are found"),
    };
    out.push(&format!("Serving on {address} with {replicas} (throng fleet status)"));
    tokio::spawn(systemd::feed_watchdog(move || loading.is_live()));
    if handover::is_successor() {
        // Until then, the predecessor process answers.
        fleet.settled(SETTLE_LIMIT).await;
    }
    systemd::ready(&format!("serving on {address}"));
    handover::ready();
    let served = gateway.serve(listener, told_to_end(signals, &mut listening)).await;
    limits::finish(limits).await;
    database::finish(ledger).await;
    out.flush(OUTPUT_LIMIT);
    served.map_err(Into::into)
}
