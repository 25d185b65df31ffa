//! The engine that computes nothing in a worker, and a gateway over it in another process. Does not know the
//! clients.

use std::time::Duration;

use anyhow::Result;
use throng_gateway::{GatewayConfig, Loading, ReplicaConfig, Secret, Worker};
use tokio::net::TcpListener;

use crate::paper::{self, MODEL};
use throng_cli::commands::serve::adapters;
use throng_cli::commands::worker::worker_model;
use throng_cli::config::{AdapterSection, ModelSection};
use throng_cli::process::output;

/// The token is valid for this run only, on the loopback address.
const TOKEN: &str = "bench";
/// Time for which the gateway waits for the worker.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);

/// Serves the worker until it is ended; prints its port first.
///
/// # Errors
/// When the model's vocabulary or the socket cannot be used.
pub async fn serve_worker(step: Duration) -> Result<()> {
    let (running, engine) = paper::start(step)?;
    let adapters =
        adapters::settings(&running, &AdapterSection::default(), &adapters::ChangedAdapters::default())?;
    let mut model = worker_model(running, &ModelSection::default(), adapters)?;
    model.description.names = vec![MODEL.to_owned()];
    model.engine = engine;
    let mut config = GatewayConfig::default();
    config.access.api_keys = vec![Secret::new(TOKEN)];
    let worker = Worker::new(config, model)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    output::line(listener.local_addr()?.port())?;
    worker.serve(listener, std::future::pending::<()>()).await?;
    Ok(())
}

/// Serves a gateway over the worker at this port until it is ended; prints its port and a key first.
///
/// # Errors
/// When the database or the socket cannot be used.
pub async fn serve_gateway(step: Duration, worker_port: u16) -> Result<()> {
    let replica = ReplicaConfig::of_url(format!("throng://127.0.0.1:{worker_port}"));
    paper::serve_gateway(step, async |loading: &Loading| {
        let fleet = loading.start_fleet(&[replica], Some(&Secret::new(TOKEN)))?;
        fleet.settled(SETTLE_LIMIT).await;
        Ok(fleet)
    })
    .await
}
