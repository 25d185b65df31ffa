//! `throng chat` and `throng run`: a conversation in the terminal, streamed, with its history, or one answer.
//! Does not know where answers are generated.

mod answer;
mod answering;
mod interrupt;
mod lines;
pub(super) mod remote;

pub(super) use answering::Answering;

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::args::ChatArgs;
use crate::attachments::{attached, image_part};
use crate::error_chain::in_full;
use crate::process::output;
use crate::process::wrapping::{Wrapper, terminal_width};

use answer::{Answer, ContextFull};
use answering::{message, showing};
use interrupt::{INTERRUPTED, Interrupt};
use lines::{Line, Lines};

const HELP: &str = "Commands: /image FILE attaches an image, /new starts over, /undo takes the last exchange back, /help, \
    /exit. Ctrl-C stops an answer, Ctrl-D leaves. Pasted lines are one message.";

/// Message when the model's context is full.
const FULL: &str = "The model's context is full: /new starts over, /undo takes the last exchange back.";

/// Hint after the first Ctrl-C at an empty line; the second one in a row ends the chat.
const HOW_TO_LEAVE: &str = "Ctrl-D or /exit leaves, and so does Ctrl-C again.";

/// Runs the command.
///
/// # Errors
/// When the model cannot be loaded or has no chat template, or the server cannot be reached; in a pipe also
/// when a message had no answer.
pub async fn run(arguments: &ChatArgs) -> Result<()> {
    converse(&Answering::start(arguments)?, arguments).await
}

/// Answers one prompt.
///
/// # Errors
/// When the model or the server fails to answer.
pub(super) async fn answer_once(answering: &Answering, arguments: &ChatArgs, prompt: &str) -> Result<()> {
    let style = Style::of_terminal();
    let mut chat = Chat::new(arguments, answering, (false, style));
    chat.start_over();
    let interrupt = Interrupt::listen(false).context("cannot receive Ctrl-C")?;
    chat.answer(prompt, &interrupt).await?;
    chat.end()
}

/// Answers messages from standard input, one after the other.
///
/// # Errors
/// When a message from a pipe got no answer.
pub(super) async fn converse(answering: &Answering, arguments: &ChatArgs) -> Result<()> {
    let is_terminal = std::io::stdin().is_terminal();
    let style = Style::of_terminal();
    if let Some(notice) = answering.notice() {
        output::note(format_args!("{}\n", style.faint(notice)));
    }
    let mut lines = Lines::Plain;
    if is_terminal {
        output::note(style.faint(&format!("Chatting with {}. {HELP}\n", answering.name())));
        lines = Lines::of_terminal(style.prompt())?;
    }
    let mut chat = Chat::new(arguments, answering, (is_terminal, style));
    chat.start_over();
    let interrupt = Interrupt::listen(is_terminal).context("cannot receive Ctrl-C")?;
    let mut was_interrupted = false;
    loop {
        let line = match lines.next()? {
            Line::Text(line) => line,
            Line::End => return chat.end(),
            Line::Interrupted if was_interrupted => std::process::exit(INTERRUPTED),
            Line::Interrupted => {
                was_interrupted = true;
                output::note(HOW_TO_LEAVE);
                continue;
            }
        };
        was_interrupted = false;
        match line.trim() {
            "" => {}
            "/exit" | "/quit" => return chat.end(),
            "/help" => output::note(HELP),
            "/new" => chat.start_over(),
            "/undo" => chat.undo(),
            command if is_command(command) => {
                output::note(format_args!("{command} is no command. {HELP}"));
            }
            text => match attached(text) {
                Some(file) => chat.attach(&file),
                None => chat.answer(text, &interrupt).await?,
            },
        }
    }
}

/// Whether a line has the form of a command: a slash and one word of letters. A path or a comment is a
/// message.
fn is_command(line: &str) -> bool {
    line.strip_prefix('/').is_some_and(|word| !word.is_empty() && word.chars().all(char::is_alphabetic))
}

struct Chat<'a> {
    arguments: &'a ChatArgs,
    answering: &'a Answering,
    messages: Vec<Value>,
    /// Images for the next message.
    images: Vec<Value>,
    is_terminal: bool,
    style: Style,
    /// Number of messages that got no answer.
    n_unanswered: usize,
}

impl<'a> Chat<'a> {
    fn new(arguments: &'a ChatArgs, answering: &'a Answering, (is_terminal, style): (bool, Style)) -> Self {
        let (messages, images) = (Vec::new(), Vec::new());
        Self { arguments, answering, messages, images, is_terminal, style, n_unanswered: 0 }
    }

    /// Attaches an image to the next message, or prints why it cannot be.
    fn attach(&mut self, file: &Path) {
        match image_part(file) {
            Ok(image) => {
                self.images.push(image);
                let n = self.images.len();
                output::note(self.style.faint(&format!("[{n} attached to the next message]")));
            }
            Err(error) => output::note(in_full(&error)),
        }
    }

    fn start_over(&mut self) {
        self.images.clear();
        let system = self.arguments.system.iter();
        self.messages = system.map(|text| message("system", text)).collect();
    }

    fn undo(&mut self) {
        let n_system = usize::from(self.arguments.system.is_some());
        self.messages.truncate(self.messages.len().saturating_sub(2).max(n_system));
    }

    /// Ends the chat. The exit status is 0 only if all messages were answered, for programs that write
    /// messages into a pipe.
    fn end(&self) -> Result<()> {
        match self.n_unanswered {
            0 => Ok(()),
            _ if self.is_terminal => Ok(()),
            1 => bail!("a message had no answer"),
            n => bail!("{n} messages had no answer"),
        }
    }

    /// Answers one message. If that fails, prints the reason and removes the message; the conversation
    /// continues. The part of an answer that was written before Ctrl-C stays in the conversation.
    async fn answer(&mut self, text: &str, interrupt: &Interrupt) -> Result<()> {
        let images = std::mem::take(&mut self.images);
        self.messages.push(if images.is_empty() { message("user", text) } else { showing(images, text) });
        let started = Instant::now();
        let (mut answer, mut first, mut printed) = (String::new(), None, Ok(()));
        let mut wrapper = Wrapper::new(terminal_width(&std::io::stdout()));
        let print = |piece: &str| {
            first.get_or_insert_with(|| started.elapsed());
            answer.push_str(piece);
            printed = output::text(&wrapper.push(piece));
            printed.is_ok()
        };
        let answered = self.answering.answer(&self.messages, self.arguments, print);
        let answered = interrupt.unless_pressed(answered).await;
        printed?;
        let is_ended = matches!(answered, Some(Ok(_)) | None);
        if is_ended {
            output::line(wrapper.finish())?;
        }
        match answered {
            Some(Ok(answered)) => {
                self.note_statistics(answered, started.elapsed(), first);
                self.note_if_full(answered);
                self.messages.push(message("assistant", &answer));
            }
            Some(Err(error)) => {
                let is_full = error.is::<ContextFull>();
                output::note(if is_full { FULL.to_owned() } else { in_full(&error) });
                self.messages.pop();
                self.n_unanswered += 1;
            }
            None if answer.is_empty() => {
                output::note(self.style.faint("[stopped before the answer began]\n"));
                self.messages.pop();
            }
            None => {
                output::note(self.style.faint("[stopped]\n"));
                self.messages.push(message("assistant", &answer));
            }
        }
        Ok(())
    }

    fn note_statistics(&self, answered: Answer, elapsed: Duration, first: Option<Duration>) {
        if self.is_terminal {
            let first = first.unwrap_or_default();
            let rest = (elapsed - first).as_secs_f64().max(1e-9);
            let (n, speed) = (answered.n_tokens, answered.n_tokens.saturating_sub(1) as f64 / rest);
            let statistics = format!("[{n} tokens, {speed:.0} tokens/s, first after {first:.0?}]\n");
            output::note(self.style.faint(&statistics));
        }
    }

    fn note_if_full(&self, answered: Answer) {
        if answered.context_is_full {
            output::note(FULL);
        }
    }
}

/// Colours, where standard output and error are a terminal and `NO_COLOR` is not set.
#[derive(Debug, Clone, Copy)]
struct Style {
    has_colours: bool,
}

impl Style {
    fn of_terminal() -> Self {
        let is_terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        Self { has_colours: is_terminal && !output::is_plain() }
    }

    fn faint(self, text: &str) -> String {
        if self.has_colours { output::faint(text) } else { text.to_owned() }
    }

    fn prompt(self) -> String {
        if self.has_colours { "\u{1b}[1;36m>\u{1b}[0m ".to_owned() } else { "> ".to_owned() }
    }
}
