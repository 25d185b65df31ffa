//! `throng generate`: continues one prompt and prints the result.

use std::io::Read;

use anyhow::{Context, Result, bail};

use crate::args::GenerateArgs;
use crate::config::{EngineSection, ModelSection};
use crate::process::output;
use crate::running;

/// Runs the command.
///
/// # Errors
/// When the model cannot be loaded, or the prompt is refused.
pub async fn run(arguments: &GenerateArgs) -> Result<()> {
    // Before the model is loaded, which may take long.
    let text = prompt_of(arguments)?;
    let section = ModelSection::of(&arguments.model);
    let running = running::start(&section, &EngineSection::of(&arguments.model))?;
    if let Some(line) = running.describe_quantizing() {
        output::note(line);
    }
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

/// The prompt that is given, or standard input.
///
/// # Errors
/// When it is empty or cannot be read.
fn prompt_of(arguments: &GenerateArgs) -> Result<String> {
    let mut text = arguments.prompt.clone().unwrap_or_default();
    if arguments.prompt.is_none() {
        std::io::stdin().read_to_string(&mut text).context("cannot read the prompt")?;
    }
    if text.is_empty() {
        bail!("there is no prompt: give one with --prompt, or on standard input");
    }
    Ok(text)
}
