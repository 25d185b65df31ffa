//! Runs everything a change must pass, the fastest checks first.

mod clients;
mod dependencies;
mod machine;
mod sanitizers;
mod skipped;

use anyhow::Result;

pub use machine::python;

use crate::shell::{cargo, run_with};
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

/// Runs that part and fails at the first failure. The last lines say what was skipped.
pub fn run(part: Part) -> Result<()> {
    skipped::forget()?;
    let passed = run_part(part);
    skipped::print();
    passed
}

fn run_part(part: Part) -> Result<()> {
    match part {
        Part::OtherClients => return clients::run_others(),
        Part::Checkpoints => return clients::run_checkpoints(),
        Part::Sanitizers => return sanitizers::run(),
        Part::All | Part::Rust | Part::EndToEnd => {}
    }
    // While clippy works, what the end-to-end tests need comes over the network. One of them at a time may use apt-get.
    let preparing = (part == Part::All).then(|| std::thread::spawn(clients::prepare));
    if part != Part::EndToEnd {
        cargo(&["fmt", "--all", "--check"])?;
        cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
        tidy::run()?;
        dependencies::check()?;
        if let Some(preparing) = preparing {
            // Should it have failed, the end-to-end tests try again and say why.
            let _ = preparing.join();
        }
        machine::postgres()?;
        machine::redis()?;
        // One run names every failure, not those of the first crate alone.
        let test = ["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"];
        run_with(env!("CARGO"), &test, &[(skipped::VARIABLE, skipped::file())])?;
    }
    if part != Part::Rust {
        clients::run()?;
    }
    Ok(())
}
