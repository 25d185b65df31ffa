//! The flags of `throng rank`, which a server starts by itself for each further process of a divided model.
//! Does not know models.

use clap::Args;

/// `throng rank`.
#[derive(Debug, Clone, Args)]
pub struct RankArgs {
    /// The number of this process
    #[arg(long, value_name = "N")]
    pub rank: usize,
    /// Processes that share each layer
    #[arg(long, value_name = "N")]
    pub ranks: usize,
    /// Stages of layers
    #[arg(long, value_name = "N")]
    pub stages: usize,
}
