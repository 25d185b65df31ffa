//! Models over the processes of MPI jobs: builds the feature `mpi` with the MPI library of a Python
//! environment, and runs the tests of the collectives and `tests/mpi/` under its `mpirun`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::machine;
use crate::shell::{output_of, run_with, workspace};

const FEATURE: &str = "throng-cli/mpi";
/// Numbers of processes of the collectives' test.
const JOBS: [u32; 3] = [2, 3, 5];
/// Options of `mpirun` for more processes than cores, and for containers that run as root.
const OPTIONS: &str = "--allow-run-as-root --oversubscribe --bind-to none";

/// Runs the tests.
///
/// # Errors
/// When one fails, or the binary does not compile.
pub fn run() -> Result<()> {
    let python = machine::mpi_python()?;
    let bin = python.parent().context("an environment has a folder")?;
    let variables = variables(bin)?;
    let cargo = |line: &[&str]| {
        let of_workspace = ["--workspace", "--features", FEATURE, "--test", "mpi"];
        run_with(env!("CARGO"), &[&line[..1], &of_workspace[..], &line[1..]].concat(), &variables)
    };
    // With a test, so that dependencies have the features that the other tests compile them with.
    cargo(&["build", "--bin", "throng"])?;
    // The next build of the workspace replaces it.
    let binary = workspace().join("target/mpi/throng");
    std::fs::create_dir_all(workspace().join("target/mpi"))?;
    std::fs::copy(workspace().join("target/debug/throng"), &binary).context("cannot copy the binary")?;
    for n_processes in JOBS {
        let runner = format!("target.'cfg(all())'.runner = 'mpirun {OPTIONS} -n {n_processes}'");
        cargo(&["test", "--config", &runner])?;
    }
    let binary = binary.to_string_lossy();
    run_with(&python, &["-m", "pytest", "-q", "tests/mpi", "--throng", &*binary, "--nightly"], &variables)
}

/// Variables by which the build finds MPI's compiler wrapper, libclang and the headers of a compiler, which
/// the package of libclang does not have, and by which programs find MPI's library.
fn variables(bin: &Path) -> Result<Vec<(&'static str, PathBuf)>> {
    let environment = bin.parent().context("an environment has a folder")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(bin.to_owned()).chain(std::env::split_paths(&path)))?;
    let output = output_of("cc", &["-print-file-name=include"])?;
    let headers = String::from_utf8(output).context("a path")?;
    let locate = ["-c", "import clang, pathlib; print(pathlib.Path(clang.__path__[0]) / 'native', end='')"];
    let libclang = String::from_utf8(output_of(bin.join("python"), &locate)?)?;
    Ok(vec![
        ("PATH", PathBuf::from(path)),
        ("LIBCLANG_PATH", PathBuf::from(libclang)),
        ("BINDGEN_EXTRA_CLANG_ARGS", PathBuf::from(format!("-I{}", headers.trim()))),
        ("LD_LIBRARY_PATH", environment.join("lib")),
    ])
}
