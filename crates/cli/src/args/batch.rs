//! The flags of `throng batch`.

use std::path::PathBuf;

use clap::Args;

use super::ModelArgs;
use crate::bounds::{self, within};

/// `throng batch`.
#[derive(Debug, Clone, Args)]
pub struct BatchArgs {
    /// The requests, one a line, as OpenAI's batches have them (JSONL)
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The results, one a line in the order in which they come; lines that it has already are not answered
    /// again
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Lines that are answered at a time
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = within(bounds::BATCH_LINES))]
    pub concurrency: usize,
}
