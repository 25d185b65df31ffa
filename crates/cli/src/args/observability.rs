//! The flags of `throng serve` for logs, traces and metrics of requests, and those of `throng explain`.
//! Does not know where reports go.

use std::path::PathBuf;

use clap::Args;

use crate::bounds::{self, within};

/// What is told of requests, and where.
#[derive(Debug, Clone, Default, Args)]
pub struct ObservabilityArgs {
    /// Append a line of JSON for each request to this file; - is standard output
    #[arg(long, value_name = "FILE")]
    pub access_log: Option<PathBuf>,
    /// Put the beginning of each request's body into the access log, and with it what users wrote
    #[arg(long)]
    pub access_log_bodies: bool,
    /// Send each request as a trace to this collector, by OTLP over HTTP: http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    pub otlp_traces_endpoint: Option<String>,
    /// Record the load to this file, without its text: arrivals, lengths, salted names of prompt blocks, ends
    /// and step times, for throng replay and throng trace
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Finished requests that are kept for throng explain
    #[arg(long, value_name = "N", value_parser = within(bounds::EXPLAINED_REQUESTS))]
    pub max_explained_requests: Option<usize>,
}

/// `throng explain`.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// The request's id: the x-request-id of its response; the latest requests are listed when absent
    pub request: Option<String>,
    /// The server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    pub url: String,
    /// The API key that the request was sent with, or another one of its project
    #[arg(long, env = "THRONG_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub api_key: Option<String>,
    /// Print the server's answer as JSON
    #[arg(long)]
    pub json: bool,
}
