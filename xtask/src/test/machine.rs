//! Installs what the tests need and the machine lacks: a browser from Debian's packages, a Python environment with the
//! client libraries. Prints what it installs.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::shell::{exists, run, workspace};

/// A Python interpreter with the packages of `tests/requirements.txt`, in an environment under `target/`.
pub fn python() -> Result<PathBuf> {
    let folder = workspace().join("target/e2e-venv");
    let python = folder.join("bin/python");
    let wanted = std::fs::read_to_string(workspace().join("tests/requirements.txt"))?;
    let stamp = folder.join("requirements.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    if !exists("python3") {
        debian(&["python3", "python3-venv"])?;
    }
    println!("installing into target/e2e-venv: {}", wanted.lines().collect::<Vec<_>>().join(", "));
    let folder = folder.to_string_lossy().into_owned();
    if run("python3", &["-m", "venv", &folder]).is_err() {
        debian(&["python3-venv"])?;
        run("python3", &["-m", "venv", &folder])?;
    }
    run(
        &python,
        &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", "tests/requirements.txt"],
    )?;
    std::fs::write(stamp, wanted)?;
    Ok(python)
}

/// A headless Chromium and its driver.
pub fn browser() -> Result<()> {
    if exists("chromium") && exists("chromedriver") {
        return Ok(());
    }
    debian(&["chromium", "chromium-driver"])
}

fn debian(packages: &[&str]) -> Result<()> {
    if !exists("apt-get") {
        bail!("please install {} (only apt-get is known here)", packages.join(", "));
    }
    println!("installing with apt-get: {}", packages.join(", "));
    run("apt-get", &["update", "-qq"])?;
    let install = [&["install", "-y", "-qq", "--no-install-recommends"], packages].concat();
    run("apt-get", &install)
}
