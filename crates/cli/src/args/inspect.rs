//! The flags of `throng inspect` and `throng pull`. Does not know models.

use std::path::PathBuf;

use clap::Args;

use super::ModelArgs;
use super::values::model_place;

/// `throng inspect`.
#[derive(Debug, Clone, Args)]
pub struct InspectArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// List every tensor
    #[arg(long)]
    pub tensors: bool,
    /// List which of the most used models are supported, and open none
    #[arg(long, conflicts_with = "tensors")]
    pub known: bool,
}

/// `throng pull`.
#[derive(Debug, Clone, Args)]
pub struct PullArgs {
    /// A hub id, or a URL (s3://, gs://, az://, https://) of a folder or .gguf file
    #[arg(value_parser = model_place)]
    pub model: String,
    /// The branch, tag or commit of a hub id
    #[arg(long, value_name = "REVISION")]
    pub revision: Option<String>,
    /// The folder for models, instead of the cache that HF_HUB_CACHE or HF_HOME names
    #[arg(long, value_name = "DIR")]
    pub download_dir: Option<PathBuf>,
}
