//! The `throng` binary.

use clap::Parser;
use throng_cli::args::CommandLine;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    CommandLine::parse();
}
