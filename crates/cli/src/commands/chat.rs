//! `throng chat`: a conversation in the terminal, streamed, with its history.

use std::io::{BufRead, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use crate::args::ChatArgs;
use crate::config::{EngineSection, ModelSection};
use crate::process::output;
use crate::running::{self, RunningModel};

const HELP: &str = "Commands: /new starts over, /undo takes the last exchange back, /exit leaves. \
    Ctrl-C stops an answer.";

/// Runs the command.
///
/// # Errors
/// When the model cannot be loaded or has no chat template.
pub async fn run(arguments: &ChatArgs) -> Result<()> {
    let section = ModelSection::of(&arguments.model);
    let running = running::start(&section, &EngineSection::of(&arguments.model))?;
    if let Some(line) = running.describe_quantizing() {
        output::note(line);
    }
    let is_terminal = std::io::stdin().is_terminal();
    if let Some(notice) = running.notice {
        output::note(format_args!("{notice}\n"));
    }
    if is_terminal {
        output::note(format_args!("Chatting with {}. {HELP}\n", running.names[0]));
    }
    let mut chat = Chat { arguments, running: &running, messages: Vec::new(), is_terminal };
    chat.start_over();
    let stop = stop_on_interrupt();
    loop {
        if is_terminal {
            output::prompt("> ");
        }
        let mut line = String::new();
        if std::io::stdin().lock().read_line(&mut line)? == 0 {
            return Ok(());
        }
        match line.trim() {
            "" => {}
            "/exit" | "/quit" => return Ok(()),
            "/help" => output::note(HELP),
            "/new" => chat.start_over(),
            "/undo" => chat.undo(),
            message => chat.answer(message, &stop).await?,
        }
    }
}

struct Chat<'a> {
    arguments: &'a ChatArgs,
    running: &'a RunningModel,
    messages: Vec<Value>,
    is_terminal: bool,
}

impl Chat<'_> {
    fn start_over(&mut self) {
        let system = self.arguments.system.iter();
        self.messages = system.map(|text| json!({"role": "system", "content": text})).collect();
    }

    fn undo(&mut self) {
        let n_system = usize::from(self.arguments.system.is_some());
        self.messages.truncate(self.messages.len().saturating_sub(2).max(n_system));
    }

    /// Answers one message. If the engine refuses it (the conversation is too long), prints why and removes the
    /// message; the conversation goes on.
    async fn answer(&mut self, message: &str, stop: &AtomicBool) -> Result<()> {
        self.messages.push(json!({"role": "user", "content": message}));
        stop.store(false, Ordering::Relaxed);
        let started = Instant::now();
        let (mut text, mut first, mut printed) = (String::new(), None, Ok(()));
        let print = |piece: &str| {
            first.get_or_insert_with(|| started.elapsed());
            text.push_str(piece);
            printed = output::text(piece);
            printed.is_ok() && !stop.load(Ordering::Relaxed)
        };
        let prompt = self.running.chat_prompt(&self.messages)?;
        let answer = self.running.generate(prompt, &self.arguments.sampling, print).await;
        stop.store(true, Ordering::Relaxed);
        printed?;
        match answer {
            Ok(answered) => {
                output::line("")?;
                if self.is_terminal {
                    let first = first.unwrap_or_default();
                    let rest = (started.elapsed() - first).as_secs_f64().max(1e-9);
                    let speed = answered.n_output.saturating_sub(1) as f64 / rest;
                    output::note(format_args!(
                        "[{} tokens, {speed:.0} tokens/s, first after {first:.0?}]\n",
                        answered.n_output
                    ));
                }
                self.messages.push(json!({"role": "assistant", "content": text}));
            }
            Err(error) => {
                output::note(format_args!("{error:#}"));
                self.messages.pop();
            }
        }
        Ok(())
    }
}

/// Set by Ctrl-C while an answer is generated; at other times Ctrl-C ends the program.
fn stop_on_interrupt() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(true));
    let flag = Arc::clone(&stop);
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            if flag.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        }
    });
    stop
}
