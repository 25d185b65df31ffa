//! `throng generate`: continues one prompt and prints the result.

use std::io::Read;

use anyhow::{Context, Result};

use crate::args::GenerateArgs;
use crate::config::{EngineSection, ModelSection};
use crate::process::output;
use crate::running;

/// Runs the command.
///
/// # Errors
/// When the model cannot be loaded, or the prompt is refused.
pub async fn run(arguments: &GenerateArgs) -> Result<()> {
    let section = ModelSection::of(&arguments.model);
    let running = running::start(&section, &EngineSection::of(&arguments.model))?;
    if let Some(line) = running.describe_quantizing() {
        output::note(line);
    }
    let text = match &arguments.prompt {
        Some(prompt) => prompt.clone(),
        None => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read the prompt")?;
            text
        }
    };
    let prompt = running.text_prompt(&text)?;
    let mut printed = Ok(());
    let print = |piece: &str| {
        printed = output::text(piece);
        printed.is_ok()
    };
    running.generate(prompt.into(), &arguments.sampling, print).await?;
    printed?;
    Ok(output::line("")?)
}
