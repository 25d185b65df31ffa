//! States of the fleet's workers and engines, for operators. Does not observe them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use throng_core::fleet::health::State as Health;
use throng_core::fleet::replica::RankReport;
use throng_core::fleet::routing::{Region, Role};
use throng_core::time::Nanos;
use throng_fleet::replica::Link;
use throng_fleet::upstream::{Upstream, UpstreamModel, UpstreamReplica};

use crate::app::App;

#[derive(Serialize)]
struct Workers {
    workers: Vec<Worker>,
}

#[derive(Serialize)]
struct Worker {
    /// Name of the member for `x-throng-replica`.
    name: String,
    url: String,
    state: &'static str,
    reason: Option<String>,
    /// Seconds in this state, if known.
    seconds: Option<u64>,
    models: Vec<String>,
    fingerprint: String,
    /// Part of requests that the member is meant for.
    role: &'static str,
    running: usize,
    waiting: usize,
    used_blocks: usize,
    total_blocks: usize,
    /// Number of blocks in the member's prefix cache, as far as reported.
    known_blocks: usize,
    region: Option<String>,
    /// Ranks of the member's model, if it is divided over processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    ranks: Option<Ranks>,
    /// Shortest of the latest round trips to the member.
    round_trip_ms: Option<f64>,
}

#[derive(Serialize)]
struct Ranks {
    tensor: u32,
    pipeline: u32,
    transport: String,
    /// Measured share of communication in steps, from 0 to 1; none before the first one.
    communication_share: Option<f64>,
    losses: u64,
}

impl From<RankReport> for Ranks {
    fn from(report: RankReport) -> Self {
        let communication_share = report.exchanging_share();
        let RankReport { tensor, pipeline, transport, losses, .. } = report;
        Self { tensor, pipeline, transport, communication_share, losses }
    }
}

/// All workers in the order of their arrival, and the upstream engines of each model.
pub(super) async fn workers(State(app): State<Arc<App>>) -> Response {
    let links = app.models.workers.now();
    let models = app.models.upstreams.now();
    let engines = models.iter().flat_map(|model| {
        model.replicas().into_iter().map(|replica| engine(model, &replica)).collect::<Vec<_>>()
    });
    let idle = app.models.upstreams.idle();
    let idle = idle.iter().map(|upstream| idle_engine(upstream));
    Json(Workers { workers: links.iter().map(worker).chain(engines).chain(idle).collect() }).into_response()
}

/// Entry of an engine without served models: it has not reported them, or cannot serve them.
fn idle_engine(upstream: &Upstream) -> Worker {
    let trouble = upstream.trouble.present();
    let (reason, since) = trouble.unzip();
    Worker {
        name: upstream.name.clone(),
        url: upstream.url().to_owned(),
        state: if reason.is_some() { "down" } else { Health::Starting.name() },
        reason: reason.or_else(|| Some("it has not told its models yet".to_owned())),
        seconds: since.map(|since| since.elapsed().as_secs()),
        models: Vec::new(),
        fingerprint: String::new(),
        role: Role::Both.name(),
        running: 0,
        waiting: 0,
        used_blocks: 0,
        total_blocks: 0,
        known_blocks: 0,
        region: upstream.region.as_ref().map(Region::to_string),
        ranks: None,
        round_trip_ms: None,
    }
}

fn worker(link: &Arc<Link>) -> Worker {
    let report = link.report();
    let (region, round_trip_ms) = shown(report.region_and_rtt);
    Worker {
        name: link.endpoint.name(),
        url: link.endpoint.address.to_string(),
        state: report.state,
        reason: report.reason,
        seconds: Some(report.since.elapsed().as_secs()),
        models: report.names,
        fingerprint: report.fingerprint.to_string(),
        role: report.role.name(),
        running: report.load.n_running,
        waiting: report.load.n_waiting,
        used_blocks: report.load.used_blocks,
        total_blocks: report.load.total_blocks,
        known_blocks: report.n_known_blocks,
        region,
        ranks: report.ranks.map(Ranks::from),
        round_trip_ms,
    }
}

fn engine(model: &UpstreamModel, replica: &UpstreamReplica) -> Worker {
    let (region, round_trip_ms) = shown(model.dispatcher.region_and_rtt(replica.id));
    let (state, cause) = model.dispatcher.state(replica.id);
    let last_fault = replica.last_fault();
    let is_down = state == Health::Starting && last_fault.is_some();
    let reason = [cause.map(|cause| cause.name().to_owned()), last_fault];
    let reason = reason.into_iter().flatten().reduce(|cause, fault| format!("{cause}: {fault}"));
    Worker {
        name: replica.upstream.name.clone(),
        url: replica.upstream.url().to_owned(),
        state: if is_down { "down" } else { state.name() },
        reason: reason.filter(|_| state != Health::Ready),
        seconds: None,
        models: model.names.clone(),
        fingerprint: String::new(),
        role: Role::Both.name(),
        running: model.dispatcher.n_running(replica.id),
        waiting: 0,
        used_blocks: 0,
        total_blocks: 0,
        known_blocks: 0,
        region,
        ranks: None,
        round_trip_ms,
    }
}

fn shown((region, round_trip): (Option<Region>, Option<Nanos>)) -> (Option<String>, Option<f64>) {
    (region.map(|region| region.to_string()), round_trip.map(Nanos::as_ms_f64))
}
