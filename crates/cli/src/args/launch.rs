//! The flags of `throng launch`. Does not know the agents' own settings.

use clap::{Args, ValueEnum};

use super::values::model_place;

/// `throng launch`.
#[derive(Debug, Clone, Args)]
pub struct LaunchArgs {
    /// The agent
    #[arg(value_enum)]
    pub agent: Agent,
    /// The model: of a running server, else one to serve while the agent runs; a running server's first one
    /// when absent
    #[arg(long, short, value_name = "MODEL", value_parser = model_place)]
    pub model: Option<String>,
    /// The server's address; those of this machine's usual ports when absent: http://127.0.0.1:8000
    #[arg(long, env = "THRONG_URL", value_name = "URL")]
    pub url: Option<String>,
    /// The server's API key
    #[arg(long, env = "THRONG_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub api_key: Option<String>,
    /// What the agent is called with, behind --
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub rest: Vec<String>,
}

/// A coding agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Agent {
    /// Claude Code
    Claude,
    /// Codex
    Codex,
    /// opencode
    Opencode,
}
