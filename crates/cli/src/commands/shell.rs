//! `throng completions SHELL` and `throng man FOLDER`: the command line's completions and manual pages. Does
//! not know where a system stores them.

use std::path::Path;

use anyhow::{Context, Result};
use clap_complete::Shell;

use crate::args::CommandLine;
use crate::process::output;

/// Prints the completions of a shell.
///
/// # Errors
/// When standard output cannot be written.
pub fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut CommandLine::described(), "throng", &mut script);
    Ok(output::text(&String::from_utf8_lossy(&script))?)
}

/// Writes the manual pages of all commands, such as `throng.1` and `throng-serve.1`.
///
/// # Errors
/// When the folder cannot be created or written.
pub fn manual(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    // The version of a page is that of the program, whatever machine it is written on.
    let command = CommandLine::described().version(env!("CARGO_PKG_VERSION"));
    clap_mangen::generate_to(command, folder).with_context(|| folder.display().to_string())
}
