//! The arguments of the program. Does not know how anything is measured.

use std::ops::RangeInclusive;

use clap::{Parser, ValueEnum};
use throng_cli::bounds::within;

/// Requests a second.
const RATE: RangeInclusive<u32> = 1..=100_000;
/// Seconds of a measurement.
const SECONDS: RangeInclusive<u32> = 1..=3600;
/// Connections that requests are sent on.
const CONNECTIONS: RangeInclusive<u32> = 1..=10_000;
/// Open streams of a measurement.
const STREAMS: RangeInclusive<u32> = 0..=8_000;
/// Rounds of a comparison.
const ROUNDS: RangeInclusive<u32> = 1..=1000;

/// Measures what the gateway adds to a request's time, with keys, limits and the ledger, and other routers
/// beside it
#[derive(Debug, Clone, Parser)]
#[command(name = "throng-bench", version)]
pub struct Arguments {
    /// Requests a second
    #[arg(long, default_value_t = 2000, value_name = "N", value_parser = within(RATE))]
    pub rate: u32,
    /// Seconds of each measurement, after a tenth of that to warm up
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = within(SECONDS))]
    pub seconds: u32,
    /// Connections that the requests are sent on
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = within(CONNECTIONS))]
    pub connections: u32,
    /// How often all are measured, in turn
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = within(ROUNDS))]
    pub rounds: u32,
    /// Measure a gateway over a worker in another process, instead of one with the engine in its own
    #[arg(long)]
    pub remote: bool,
    /// Number of slow streams to open afterwards, to measure the gateway's memory
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = within(STREAMS))]
    pub open_streams: u32,
    /// Another router, in front of a server that answers at once, with --remote in front of Throng's own: a
    /// command with {upstream} (a URL) and {port} in it; repeatable
    #[arg(long, value_name = "NAME=COMMAND")]
    pub router: Vec<String>,
    /// One JSON object a line instead of a table
    #[arg(long)]
    pub json: bool,
    /// Be one of the servers that are measured
    #[arg(long, hide = true, value_enum)]
    pub serve: Option<PaperServer>,
    /// The port of the worker of `--serve front`
    #[arg(long, hide = true, default_value_t = 0)]
    pub worker_port: u16,
    /// How long a step of that server's engine takes
    #[arg(long, hide = true, default_value_t = 0)]
    pub step_ms: u64,
}

/// The servers that this program starts of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PaperServer {
    /// Answers at once.
    Bare,
    /// The gateway over an engine that answers at once.
    Gateway,
    /// A worker with that engine.
    Worker,
    /// A gateway over the worker.
    Front,
}

impl PaperServer {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Gateway => "gateway",
            Self::Worker => "worker",
            Self::Front => "front",
        }
    }
}
