//! Runs everything a change must pass, the fastest checks first.

mod clients;
mod dependencies;
mod machine;
mod mpi;
mod rust;
mod sanitizers;
mod skipped;

use std::path::PathBuf;

use anyhow::{Result, bail};

pub use machine::python;

use crate::shell::cargo;
use crate::tidy;

/// The part of the tests to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of them.
    All,
    /// The tests that need only a Rust toolchain and a C compiler.
    Rust,
    /// The official client libraries and a browser against the real binary.
    EndToEnd,
    /// The client libraries that others have built, which takes a large environment to install.
    OtherClients,
    /// Quantized checkpoints against the libraries that write them, which takes an even larger one.
    Checkpoints,
    /// The crates with `unsafe` or threads of their own, under sanitizers.
    Sanitizers,
}

/// Numbers of repetitions in the nightly run of checks that the ordinary one runs a few times.
const NIGHTLY: [(&str, &str); 9] = [
    ("THRONG_NIGHTLY", "1"),
    ("THRONG_KILLS", "40"),
    ("THRONG_STOPS", "10"),
    ("THRONG_PARTITIONS", "5"),
    ("THRONG_RESTARTS", "20"),
    ("THRONG_GATEWAY_STOPS", "10"),
    ("THRONG_GATEWAY_KILLS", "20"),
    ("THRONG_GENERATED_REQUESTS", "20000"),
    ("THRONG_N_CONSTRAINED", "500"),
];

/// How much of a part is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Checks that every change must pass.
    Ordinary,
    /// All checks, also those that take long and seldom fail.
    Nightly,
}

impl Extent {
    /// The variables by which tests are told. One that is set already keeps its value.
    fn variables(self) -> impl Iterator<Item = (&'static str, PathBuf)> {
        let all: &[_] = if self == Self::Nightly { &NIGHTLY } else { &[] };
        let told = [(skipped::VARIABLE, skipped::file())];
        let unset = all.iter().filter(|(name, _)| std::env::var_os(name).is_none());
        told.into_iter().chain(unset.map(|(name, value)| (*name, PathBuf::from(value))))
    }
}

/// Runs the part and the extent that the flags name and fails at the first failure. The last lines say what
/// was skipped.
pub fn run(flags: &[&str]) -> Result<()> {
    let (mut part, mut extent) = (Part::All, Extent::Ordinary);
    for flag in flags {
        match *flag {
            "--nightly" => extent = Extent::Nightly,
            "--rust" => part = Part::Rust,
            "--e2e" => part = Part::EndToEnd,
            "--clients" => part = Part::OtherClients,
            "--checkpoints" => part = Part::Checkpoints,
            "--sanitizers" => part = Part::Sanitizers,
            _ => bail!(
                "{flag}: the flags are --nightly, --rust, --e2e, --clients, --checkpoints, --sanitizers"
            ),
        }
    }
    skipped::forget()?;
    let passed = run_part(part, extent);
    skipped::print();
    passed
}

fn run_part(part: Part, extent: Extent) -> Result<()> {
    match part {
        Part::OtherClients => return clients::run_others(extent),
        Part::Checkpoints => return clients::run_checkpoints(),
        Part::Sanitizers => return sanitizers::run(),
        Part::All | Part::Rust | Part::EndToEnd => {}
    }
    // While clippy works, what the end-to-end tests need comes over the network. One of them at a time may use apt-get.
    let preparing = (part == Part::All).then(|| std::thread::spawn(move || clients::prepare(extent)));
    if part != Part::EndToEnd {
        cargo(&["fmt", "--all", "--check"])?;
        cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
        tidy::run()?;
        dependencies::check(extent)?;
        if let Some(preparing) = preparing {
            // Should it have failed, the end-to-end tests try again and say why.
            let _ = preparing.join();
        }
        machine::postgres()?;
        machine::redis()?;
        machine::vulkan()?;
        rust::run(extent)?;
    }
    if extent == Extent::Nightly {
        mpi::run()?;
    }
    if part != Part::Rust {
        clients::run(extent)?;
    }
    Ok(())
}

/// Number of tests that run at a time: more than processors, because many tests wait for servers.
fn tests_at_once() -> usize {
    2 * std::thread::available_parallelism().map_or(1, usize::from)
}
