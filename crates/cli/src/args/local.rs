//! The flags of `throng models`, `throng config` and `throng handover`, the operator's local commands
//! beside serving. Does not know models, settings and processes.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::bounds::{self, within};

/// `throng models`.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ModelsArgs {
    /// Action; `list` when absent.
    #[command(subcommand)]
    pub command: Option<ModelsCommand>,
    /// The cache to list.
    #[command(flatten)]
    pub cache: CacheArgs,
}

/// Actions on the models of the cache.
#[derive(Debug, Clone, Subcommand)]
pub enum ModelsCommand {
    /// List the models of the cache with their sizes
    #[command(visible_alias = "ls")]
    List(CacheArgs),
    /// Remove models from the cache; a server that has one open goes on with it
    #[command(visible_alias = "rm")]
    Remove(RemoveArgs),
}

/// Models to remove.
#[derive(Debug, Clone, Args)]
pub struct RemoveArgs {
    /// Their names, as the list shows them
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// The cache.
    #[command(flatten)]
    pub cache: CacheArgs,
}

/// Cache to read.
#[derive(Debug, Clone, Default, Args)]
pub struct CacheArgs {
    /// The folder for models, instead of the cache that HF_HUB_CACHE or HF_HOME names
    #[arg(long, value_name = "DIR")]
    pub download_dir: Option<PathBuf>,
    /// Print one JSON object a model
    #[arg(long)]
    pub json: bool,
}

/// `throng config`.
#[derive(Debug, Clone, Args)]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// Actions on a configuration file.
#[derive(Debug, Clone, Subcommand)]
pub enum ConfigCommand {
    /// Check a configuration file and the files that it names, and list every mistake; status 2 if there is
    /// one
    Check {
        /// The file, as --config takes it
        #[arg(env = "THRONG_CONFIG", value_name = "FILE")]
        file: PathBuf,
    },
}

/// `throng handover`.
#[derive(Debug, Clone, Args)]
pub struct HandoverArgs {
    /// The server's process, as `systemctl show -p MainPID throng` or the log names it
    #[arg(long, value_name = "PID", value_parser = within(1..=i32::MAX))]
    pub pid: i32,
    /// Seconds to wait until the new process answers
    #[arg(long, default_value_t = 620, value_name = "SECONDS", value_parser = within(bounds::HANDOVER_S))]
    pub timeout: u64,
}
