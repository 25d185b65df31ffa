//! End-to-end tests: the real binary with the official client library and a browser, and the quick run of the
//! attacks.

use std::path::Path;

use anyhow::Result;

use super::{Extent, machine, rust, tests_at_once};
use crate::shell::{cargo, run as start, run_with, workspace};

/// Installs the clients and libraries that the end-to-end tests need.
///
/// # Errors
/// When something of it cannot be had.
pub fn prepare(extent: Extent) -> Result<()> {
    machine::browser()?;
    machine::python()?;
    if extent == Extent::Nightly {
        machine::prometheus()?;
    }
    machine::axe().map(drop)
}

/// Builds the binary and runs `tests/` against it: several tests at once, then those that must be alone on
/// the machine.
///
/// # Errors
/// When one of them fails.
pub fn run(extent: Extent) -> Result<()> {
    machine::browser()?;
    let python = machine::python()?;
    for scripts in ["starter", "bench"] {
        start(&python, &["-m", "unittest", "discover", "-s", scripts])?;
    }
    rust::build_only()?;
    let binary = workspace().join("target/debug/throng");
    let binary = binary.to_string_lossy();
    let variables: Vec<_> = extent.variables().collect();
    let n_processes = tests_at_once().to_string();
    // A test that fails once and then passes is listed as "RERUN", like a flaky integration test of Rust.
    let mut line = vec!["-m", "pytest", "-q", "-rR", "--reruns", "1", "tests", "--throng", &binary];
    let axe = machine::axe()?;
    if let Some(axe) = axe.as_deref() {
        line.extend(["--axe", axe]);
    }
    let prometheus = if extent == Extent::Nightly { machine::prometheus()? } else { None };
    if let Some(prometheus) = prometheus.as_deref() {
        line.extend(["--prometheus", prometheus]);
    }
    if extent == Extent::Nightly {
        line.push("--nightly");
    }
    let together: &[&str] = &["-m", "not alone", "--numprocesses", &n_processes, "--dist", "loadfile"];
    for phase in [together, &["-m", "alone"]] {
        run_with(&python, &[&line, phase].concat(), &variables)?;
    }
    match extent {
        Extent::Ordinary => start(&python, &["tests/attacks/run.py", "--quick", "--binary", &binary]),
        Extent::Nightly => cargo(&["xtask", "attack"]),
    }
}

/// Runs `tests/clients/`: the libraries that others have built on the official one, and its JavaScript
/// sibling; in the nightly run also coding agents.
pub fn run_others(extent: Extent) -> Result<()> {
    machine::browser()?;
    run_folder(&machine::clients_python()?, "tests/clients", extent)
}

/// Runs `tests/checkpoints/`: what Throng computes of quantized checkpoints, against the libraries that write
/// them.
pub fn run_checkpoints() -> Result<()> {
    run_folder(&machine::checkpoints_python()?, "tests/checkpoints", Extent::Ordinary)
}

/// Builds the binary and runs the tests of a folder that has packages of its own.
fn run_folder(python: &Path, folder: &str, extent: Extent) -> Result<()> {
    cargo(&["build", "--package", "throng-cli"])?;
    let binary = workspace().join("target/debug/throng");
    let binary = binary.to_string_lossy();
    let mut line = vec!["-m", "pytest", "-q", "-rx", folder, "--throng", &binary];
    if extent == Extent::Nightly {
        line.push("--nightly");
    }
    start(python, &line)
}
