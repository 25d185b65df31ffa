//! `cargo xtask attack`: builds the release binary and runs `tests/attacks/` against it. Does not know any
//! attack.

use anyhow::Result;

use crate::shell::{cargo, run as start, workspace};
use crate::test::python;

const PROGRAM: &str = "tests/attacks/run.py";

/// Attacks the release binary, or the one that `--binary PATH` names; other arguments are passed to the
/// program.
pub fn run(arguments: &[&str]) -> Result<()> {
    let mut line = vec![PROGRAM];
    line.extend(arguments);
    let binary = workspace().join("target/release/throng");
    let binary = binary.to_string_lossy();
    if !arguments.iter().any(|argument| argument.split('=').next() == Some("--binary")) {
        if !arguments.iter().any(|argument| ["--list", "--help", "-h"].contains(argument)) {
            cargo(&["build", "--release", "--package", "throng-cli"])?;
        }
        line.extend(["--binary", &binary]);
    }
    start(python()?, &line)
}
