//! `throng run`: a chat with a model, or the answer to one prompt. A running server that has the model
//! answers, else this process. Does not know how text is generated.

use std::io::{IsTerminal, Read};

use anyhow::{Context, Result, bail};

use super::chat::remote::Server;
use super::chat::{self, Answering};
use super::running_server;
use crate::args::{ChatArgs, RunArgs};
use crate::process::output;

/// Maximum bytes of a prompt from standard input.
const MAX_PROMPT_BYTES: u64 = 8 << 20;

/// Runs the command.
///
/// # Errors
/// When the model cannot be loaded, the server cannot be reached, or there is no answer.
pub async fn run(arguments: &RunArgs) -> Result<()> {
    let prompt = prompt(arguments)?;
    let answering = answering(&arguments.chat)?;
    match prompt {
        Some(prompt) => chat::answer_once(&answering, &arguments.chat, &prompt).await,
        None => chat::converse(&answering, &arguments.chat).await,
    }
}

/// A server on this machine that serves the model. The model is loaded here if there is none, or if flags
/// determine how to load it.
fn answering(arguments: &ChatArgs) -> Result<Answering> {
    if arguments.url.is_none() && !arguments.loads_itself() {
        let key = arguments.api_key.as_deref();
        if let Some(server) = running_server::find(None, key, arguments.model.model()) {
            note(&server);
            return Ok(Answering::by_server(server));
        }
    }
    Answering::start(arguments)
}

fn note(server: &Server) {
    if std::io::stderr().is_terminal() {
        output::note(format_args!("{} answers with {}.", server.base(), server.model()));
    }
}

/// The prompt: standard input, unless that is a terminal, followed by the text on the command line.
fn prompt(arguments: &RunArgs) -> Result<Option<String>> {
    let mut parts = Vec::new();
    if !std::io::stdin().is_terminal() {
        let mut text = String::new();
        let mut input = std::io::stdin().take(MAX_PROMPT_BYTES + 1);
        input.read_to_string(&mut text).context("cannot read standard input")?;
        if text.len() as u64 > MAX_PROMPT_BYTES {
            bail!("standard input has more than {MAX_PROMPT_BYTES} bytes");
        }
        parts.push(text.trim_end().to_owned());
    }
    parts.push(arguments.prompt.join(" "));
    parts.retain(|part| !part.is_empty());
    if parts.is_empty() && !std::io::stdin().is_terminal() {
        bail!("there is no prompt: neither on the command line nor in standard input");
    }
    Ok((!parts.is_empty()).then(|| parts.join("\n")))
}
