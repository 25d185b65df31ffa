//! `throng serve`: answers requests over HTTP.

use anyhow::{Result, bail};

use crate::args::ServeArgs;
use crate::config::Settings;

/// Runs the command.
///
/// # Errors
/// When the settings make no sense.
pub async fn run(arguments: &ServeArgs) -> Result<()> {
    Settings::of(arguments)?;
    bail!("serving over HTTP is not there yet; try throng chat")
}
