//! End-to-end tests: the real binary with the official client library and a browser, and the quick run of the
//! attacks.

use std::path::Path;

use anyhow::Result;

use super::{machine, skipped};
use crate::shell::{cargo, run as start, run_with, workspace};

/// Installs what the end-to-end tests need.
///
/// # Errors
/// When something of it cannot be had.
pub fn prepare() -> Result<()> {
    machine::browser()?;
    machine::python()?;
    machine::prometheus()?;
    machine::axe().map(drop)
}

/// Builds the binary and runs `tests/` against it.
pub fn run() -> Result<()> {
    machine::browser()?;
    let python = machine::python()?;
    for scripts in ["starter", "bench"] {
        start(&python, &["-m", "unittest", "discover", "-s", scripts])?;
    }
    // As the tests build it, so that the dependencies are not compiled twice, with other features.
    cargo(&["test", "--workspace", "--lib", "--bins", "--tests", "--no-run"])?;
    let binary = workspace().join("target/debug/throng");
    let binary = binary.to_string_lossy();
    let (prometheus, axe) = (machine::prometheus()?, machine::axe()?);
    let mut line = vec!["-m", "pytest", "-q", "tests", "--throng", &binary];
    if let Some(prometheus) = prometheus.as_deref() {
        line.extend(["--prometheus", prometheus]);
    }
    if let Some(axe) = axe.as_deref() {
        line.extend(["--axe", axe]);
    }
    run_with(&python, &line, &[(skipped::VARIABLE, skipped::file())])?;
    start(&python, &["tests/attacks/run.py", "--quick", "--binary", &binary])
}

/// Runs `tests/clients/`: the libraries that others have built on the official one, and its JavaScript
/// sibling.
pub fn run_others() -> Result<()> {
    machine::browser()?;
    run_folder(&machine::clients_python()?, "tests/clients")
}

/// Runs `tests/checkpoints/`: what Throng computes of quantized checkpoints, against the libraries that write
/// them.
pub fn run_checkpoints() -> Result<()> {
    run_folder(&machine::checkpoints_python()?, "tests/checkpoints")
}

/// Builds the binary and runs the tests of a folder that has packages of its own.
fn run_folder(python: &Path, folder: &str) -> Result<()> {
    cargo(&["build", "--package", "throng-cli"])?;
    let binary = workspace().join("target/debug/throng");
    start(python, &["-m", "pytest", "-q", "-rx", folder, "--throng", &binary.to_string_lossy()])
}
