//! Measurements of the gateway that are no part of the `throng` binary: `cargo run --release -p
//! throng-bench`. Starts its servers as processes of its own, each with the threads and the allocator of
//! `throng`.
#![forbid(unsafe_code)]

mod arguments;
mod bare;
mod load;
mod measurement;
mod paper;
mod remote;
mod streams;

use anyhow::Result;
use clap::Parser;
use throng_cli::process::line_queue::LineFormat;
use throng_cli::process::{logging, runtime};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<()> {
    let arguments = arguments::Arguments::parse();
    if arguments.serve.is_some() {
        logging::start("warn", LineFormat::Text)?;
    }
    let runtime = runtime::start()?;
    let ended = runtime.block_on(measurement::run(&arguments));
    runtime.shutdown_background();
    ended
}
