//! `throng generate`: continues one prompt and prints the result.

use std::io::{Read, Write};

use anyhow::{Context, Result};

use crate::args::GenerateArgs;
use crate::config::{EngineSection, ModelSection};
use crate::running;

/// Runs the command.
///
/// # Errors
/// When the model cannot be loaded, or the prompt is refused.
pub async fn run(arguments: &GenerateArgs) -> Result<()> {
    let section = ModelSection::of(&arguments.model);
    let running = running::start(&section, &EngineSection::of(&arguments.model))?;
    if let Some(line) = running.describe_quantizing() {
        eprintln!("{line}");
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
    let mut out = std::io::stdout().lock();
    let print = |piece: &str| out.write_all(piece.as_bytes()).and_then(|()| out.flush()).is_ok();
    running.generate(prompt, &arguments.sampling, print).await?;
    println!();
    Ok(())
}
