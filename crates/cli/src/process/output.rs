//! Output of commands: results go to standard output, where a failed write ends the command; messages go to
//! standard error, where a failed write is ignored. Unlike `println!` and `eprintln!`, neither panics. Does
//! not know the log.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};

use crate::process::wrapping::{terminal_width, wrapped};

/// Error of writing a result.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub struct OutputError(#[from] io::Error);

impl OutputError {
    /// Whether the reader has closed the pipe (`throng inspect | head`), which is not an error.
    pub fn is_reader_gone(&self) -> bool {
        self.0.kind() == ErrorKind::BrokenPipe
    }
}

/// Prints `result` and a line break to standard output.
///
/// # Errors
/// When it cannot be written.
pub fn line(result: impl Display) -> Result<(), OutputError> {
    text(&format!("{result}\n"))
}

/// Prints `piece` to standard output without a line break and flushes.
///
/// # Errors
/// When it cannot be written.
pub fn text(piece: &str) -> Result<(), OutputError> {
    let mut out = io::stdout().lock();
    out.write_all(piece.as_bytes())?;
    Ok(out.flush()?)
}

/// Prints a message and a line break to standard error, wrapped at words on a terminal; a failed write is
/// ignored.
pub fn note(remark: impl Display) {
    let shown = wrapped(&format!("{remark}\n"), terminal_width(&io::stderr()));
    let _ = io::stderr().write_all(shown.as_bytes());
}

/// Prints a prompt for input, without a line break.
pub fn prompt(question: &str) {
    let _ = io::stderr().write_all(question.as_bytes());
}

/// Prints text that is not part of the result, such as a model's reasoning, to standard error if that is a
/// terminal.
pub fn aside(piece: &str) {
    let mut err = io::stderr().lock();
    if err.is_terminal() {
        let shown = if is_plain() { piece.to_owned() } else { faint(piece) };
        let _ = err.write_all(shown.as_bytes());
    }
}

/// Whether `NO_COLOR` asks for text without colours.
pub fn is_plain() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Formats a text in the terminal's faint style.
pub fn faint(text: &str) -> String {
    format!("\u{1b}[2m{text}\u{1b}[0m")
}

/// Standard output without the lock of [`std::io::stdout`], so that a thread blocked on writing does not
/// block others.
pub fn unlocked_stdout() -> Box<dyn Write + Send> {
    unlocked(io::stdout())
}

/// Standard error without a lock, for the same reason.
pub fn unlocked_stderr() -> Box<dyn Write + Send> {
    unlocked(io::stderr())
}

#[cfg(unix)]
fn unlocked(stream: impl std::os::fd::AsFd + Write + Send + 'static) -> Box<dyn Write + Send> {
    match stream.as_fd().try_clone_to_owned() {
        Ok(descriptor) => Box::new(std::fs::File::from(descriptor)),
        Err(_) => Box::new(stream),
    }
}

#[cfg(not(unix))]
fn unlocked(stream: impl Write + Send + 'static) -> Box<dyn Write + Send> {
    Box::new(stream)
}
