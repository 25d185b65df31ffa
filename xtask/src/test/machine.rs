//! Installs what the tests need and the machine lacks: a browser, PostgreSQL and Redis from Debian's
//! packages, a Python environment with the client libraries, a Prometheus, axe-core. Asks nothing; prints
//! what it installs before it does.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::skipped;
use crate::shell::{exists, run, run_with, workspace};

const AXE_VERSION: &str = "4.14.1";

/// A Python interpreter with the packages of `tests/requirements.txt`, in an environment under `target/`.
pub fn python() -> Result<PathBuf> {
    environment("e2e-venv", "tests/requirements.txt")
}

/// A Python interpreter with the other client libraries, about 1.2 GB, in an environment of its own: they
/// need another version of the official library. `uv` installs them in a fraction of pip's time.
pub fn clients_python() -> Result<PathBuf> {
    environment("clients-venv", "tests/clients/requirements.txt")
}

/// A Python interpreter with the libraries that quantize checkpoints, about 6 GB, most of it what PyTorch
/// needs for GPUs.
pub fn checkpoints_python() -> Result<PathBuf> {
    environment("checkpoints-venv", "tests/checkpoints/requirements.txt")
}

/// A Python interpreter in an environment with an MPI library and libclang, by which the feature `mpi` is
/// built, and what its tests need.
pub fn mpi_python() -> Result<PathBuf> {
    environment("mpi-venv", "tests/mpi/requirements.txt")
}

/// An environment `target/NAME` with exactly the packages of that file, made anew when the file has changed.
fn environment(name: &str, requirements: &str) -> Result<PathBuf> {
    let folder = workspace().join("target").join(name);
    let python = folder.join("bin/python");
    let wanted = std::fs::read_to_string(workspace().join(requirements))?;
    let stamp = folder.join("requirements.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    if !exists("python3") {
        debian(&["python3", "python3-venv"])?;
    }
    println!("installing into target/{name} the {} packages of {requirements}", wanted.lines().count());
    let folder = folder.to_string_lossy().into_owned();
    if run("python3", &["-m", "venv", &folder]).is_err() {
        debian(&["python3-venv"])?;
        run("python3", &["-m", "venv", &folder])?;
    }
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    if requirements != "tests/requirements.txt" {
        run(&python, &[&pip[..], &["uv==0.13.9"]].concat())?;
        let target: &str = &python.to_string_lossy();
        let install = ["pip", "install", "--quiet", "--no-cache", "--python", target, "-r", requirements];
        run(format!("{folder}/bin/uv"), &install)?;
    } else {
        run(&python, &[&pip[..], &["-r", requirements]].concat())?;
    }
    std::fs::write(stamp, wanted)?;
    Ok(python)
}

/// The programs of PostgreSQL, of which tests start servers of their own.
pub fn postgres() -> Result<()> {
    server("PostgreSQL", "/usr/lib/postgresql", "postgresql")
}

/// A Redis, of which tests start servers of their own.
pub fn redis() -> Result<()> {
    server("Redis", "/usr/bin/redis-server", "redis-server")
}

/// A server from Debian's package, found by the path of its programs. Where it cannot be had, its tests are
/// skipped and say so.
fn server(name: &str, programs: &str, package: &str) -> Result<()> {
    if Path::new(programs).exists() || !exists("apt-get") || !is_root()? {
        return Ok(());
    }
    if debian(&[package]).is_err() {
        skipped::note(&format!("{name}: apt-get cannot install it"))?;
    }
    Ok(())
}

/// A driver of Vulkan in software, on which the tests of GPUs run, with the layer that checks their calls.
pub fn vulkan() -> Result<()> {
    const PROGRAMS: &str = "/usr/share/vulkan/icd.d";
    if Path::new(PROGRAMS).exists() || !exists("apt-get") || !is_root()? {
        return Ok(());
    }
    if debian(&["mesa-vulkan-drivers", "libvulkan1", "vulkan-validationlayers"]).is_err() {
        skipped::note("GPUs: apt-get cannot install mesa-vulkan-drivers")?;
    }
    Ok(())
}

/// A headless Chromium and its driver.
pub fn browser() -> Result<()> {
    if exists("chromium") && exists("chromedriver") {
        return Ok(());
    }
    debian(&["chromium", "chromium-driver"])
}

/// The file of axe-core, which finds faults of accessibility in pages, unpacked from its npm package into
/// `target/tools`. `None` where there is no npm.
pub fn axe() -> Result<Option<String>> {
    let folder = workspace().join("target/tools/axe-core");
    let file = folder.join("package/axe.min.js");
    let package = format!("axe-core@{AXE_VERSION}");
    let stamp = folder.join(AXE_VERSION);
    if !stamp.exists() {
        println!("unpacking npm's package {package} into target/tools");
        std::fs::create_dir_all(&folder)?;
        let unpack = "cd \"$0\" && tar xzf \"$(npm pack --silent \"$1\")\" && touch \"$2\"";
        if !exists("npm")
            || run("sh", &["-c", unpack, &folder.to_string_lossy(), &package, AXE_VERSION]).is_err()
        {
            skipped::note("accessibility of the page: npm's package axe-core cannot be had")?;
            return Ok(None);
        }
    }
    Ok(Some(file.to_string_lossy().into_owned()))
}

/// A Prometheus: the machine's, or the program of Debian's package, unpacked into `target/tools`, because the
/// package as a whole would start a service. `None` where there is neither.
pub fn prometheus() -> Result<Option<String>> {
    if exists("prometheus") {
        return Ok(Some("prometheus".to_owned()));
    }
    let folder = workspace().join("target/tools/prometheus");
    let program = folder.join("usr/bin/prometheus");
    if !exists(&program) && (!exists("apt-get") || unpack_prometheus(&folder).is_err()) {
        skipped::note("scraping with a real Prometheus: there is no program prometheus")?;
        return Ok(None);
    }
    Ok(Some(program.to_string_lossy().into_owned()))
}

fn unpack_prometheus(folder: &Path) -> Result<()> {
    println!("unpacking Debian's package prometheus into target/tools (20 MB to download)");
    std::fs::create_dir_all(folder)?;
    // apt-get writes to the current folder.
    run("sh", &["-c", "cd \"$0\" && apt-get download -qq prometheus", &folder.to_string_lossy()])?;
    let packages = std::fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let package =
        packages.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "deb"));
    let package = package.context("apt-get downloaded nothing")?;
    run("dpkg-deb", &[Path::new("-x"), &package, folder])?;
    Ok(std::fs::remove_file(package)?)
}

fn debian(packages: &[&str]) -> Result<()> {
    if !exists("apt-get") {
        bail!("please install {} (only apt-get is known here)", packages.join(", "));
    }
    if !is_root()? {
        bail!(
            "please install what the tests need and run them again: sudo apt-get install {}",
            packages.join(" ")
        );
    }
    println!("installing with apt-get: {}", packages.join(", "));
    run("apt-get", &["update", "-qq"])?;
    let install = [&["install", "-y", "-qq", "--no-install-recommends"], packages].concat();
    run_with("apt-get", &install, &[("DEBIAN_FRONTEND", "noninteractive".into())])
}

fn is_root() -> Result<bool> {
    let output = Command::new("id").arg("-u").output().context("cannot start id")?;
    Ok(output.stdout.trim_ascii() == b"0")
}
