//! The lines that a user writes: with editing, history and multi-line paste on a terminal, plain lines
//! elsewhere. Does not know what they mean.

use std::io::BufRead;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};

/// Maximum number of lines in the history.
const MAX_HISTORY: usize = 1000;

/// A source of lines.
pub enum Lines {
    /// A terminal. The editor takes pasted text as one message, line breaks included.
    Terminal {
        /// The editor with its history.
        editor: Box<Editor<(), FileHistory>>,
        /// File of the history, if the user's state folder is known.
        history: Option<PathBuf>,
        /// Prompt shown before a line.
        prompt: String,
    },
    /// A pipe or a file.
    Plain,
}

/// A line of input.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A message or command; a pasted one may have several lines.
    Text(String),
    /// The user pressed Ctrl-C.
    Interrupted,
    /// The input has ended.
    End,
}

impl Lines {
    /// Reads lines from a terminal.
    ///
    /// # Errors
    /// When the terminal cannot be set up.
    pub fn of_terminal(prompt: String) -> Result<Self> {
        let config = Config::builder().max_history_size(MAX_HISTORY)?.bracketed_paste(true).build();
        let mut editor = Editor::with_config(config).context("cannot set up the terminal")?;
        let history = history_file(|name| std::env::var(name).ok());
        if let Some(file) = &history {
            // The file is absent at the first start, and a broken one is not worth an error.
            let _ = editor.load_history(file);
        }
        Ok(Self::Terminal { editor: Box::new(editor), history, prompt })
    }

    /// Reads the next line.
    ///
    /// # Errors
    /// When the input cannot be read.
    pub fn next(&mut self) -> Result<Line> {
        let Self::Terminal { editor, history, prompt } = self else { return next_plain() };
        match editor.readline(prompt) {
            Ok(line) => {
                if !line.trim().is_empty() && editor.add_history_entry(line.as_str())? {
                    keep(editor, history.as_deref());
                }
                Ok(Line::Text(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(error) => Err(error).context("cannot read the terminal"),
        }
    }
}

fn next_plain() -> Result<Line> {
    let mut line = String::new();
    let n_bytes = std::io::stdin().lock().read_line(&mut line).context("cannot read the input")?;
    Ok(if n_bytes == 0 { Line::End } else { Line::Text(line) })
}

/// Writes the history. Errors are ignored.
fn keep(editor: &mut Editor<(), FileHistory>, file: Option<&Path>) {
    if let Some(file) = file
        && file.parent().is_some_and(|folder| std::fs::create_dir_all(folder).is_ok())
    {
        let _ = editor.save_history(file);
    }
}

/// `throng/chat_history` in the user's state folder, by the XDG base directory specification.
fn history_file(variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    let state = variable("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| variable("HOME").map(|home| Path::new(&home).join(".local/state")));
    Some(state?.join("throng").join("chat_history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_lies_in_the_folder_for_state() {
        let file = |set: &'static [(&str, &str)]| {
            history_file(|name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(file(&[("HOME", "/h")]), Some("/h/.local/state/throng/chat_history".into()));
        let both = file(&[("HOME", "/h"), ("XDG_STATE_HOME", "/s")]);
        assert_eq!(both, Some("/s/throng/chat_history".into()));
        assert_eq!(file(&[]), None);
    }
}
