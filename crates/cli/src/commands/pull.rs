//! `throng pull`: downloads a model into the cache and prints its path. Does not open it.

use anyhow::Result;

use crate::args::PullArgs;
use crate::process::output;
use crate::source::{HubPlace, ModelSource};

/// Runs the command.
///
/// # Errors
/// When the model cannot be found or downloaded.
pub fn run(arguments: &PullArgs) -> Result<()> {
    let source = ModelSource::find(&HubPlace {
        model: Some(&arguments.model),
        revision: arguments.revision.as_deref(),
        folder: arguments.download_dir.as_deref(),
    })?;
    match source {
        ModelSource::BuiltIn(model) => output::line(format!("{} is in the binary", model.name))?,
        ModelSource::Path { path, .. } => output::line(path.display())?,
    }
    Ok(())
}
