//! Runs the tests of the crates with `unsafe`, and of the engine's threads, under AddressSanitizer, products
//! on the kernels' threads under ThreadSanitizer, and some tests under Valgrind, which also sees values that
//! were never written. Each sanitizer must find a planted fault first. The stable toolchain carries their
//! runtimes; the standard library is not instrumented.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::skipped;
use crate::shell::{exists, output_of, run_with, workspace};

/// The program with the faults, an example of `throng-kernels`.
const PLANTED: &str = "planted_fault";
/// The standard library is used as it is, but generic code of it that is compiled already is not: atomic
/// operations would not be seen.
const FLAGS: &str = "-Zshare-generics=no -Cunsafe-allow-abi-mismatch=sanitizer";
/// Instrumented code is optimized little, since that takes its time; the engine's tests link the model and
/// never run it.
const PROFILE: [&str; 6] = [
    "--config=profile.dev.package.throng-kernels.opt-level=1",
    "--config=profile.dev.package.throng-model.opt-level=0",
    "--config=profile.dev.package.throng-checkpoint.opt-level=0",
    "--config=profile.dev.package.throng-core.opt-level=1",
    "--config=profile.dev.package.throng-engine.opt-level=1",
    "--config=profile.dev.package.throng-testkit.opt-level=1",
];
/// Tests that are left out: without threads and `unsafe` of their own, and slow enough without a sanitizer.
const SKIPPED: [&str; 2] = ["--skip=simulation", "--skip=replay"];

/// Tests of `throng-kernels` that Valgrind runs: it is fifty times slower.
const UNDER_VALGRIND: [&str; 4] = ["rows::", "logits_reduce::", "quantize_rows::", "low_rank::"];

struct Sanitizer {
    /// Its name for the compiler.
    name: &'static str,
    /// The planted fault that it must find.
    fault: &'static str,
    /// What it then reports.
    report: &'static str,
    /// The crates whose tests it runs. ThreadSanitizer runs the program with the faults only: it does not see
    /// how the standard library's locks order threads, and would report the test harness itself.
    crates: &'static [&'static str],
    /// The variable of the environment with its options, and these; `{workspace}` is its folder.
    options: (&'static str, &'static str),
}

const SANITIZERS: [Sanitizer; 2] = [
    Sanitizer {
        name: "address",
        fault: "overflow",
        report: "AddressSanitizer: heap-buffer-overflow",
        crates: &["throng-os", "throng-kernels", "throng-engine"],
        options: ("ASAN_OPTIONS", "detect_stack_use_after_return=1"),
    },
    Sanitizer {
        name: "thread",
        fault: "race",
        report: "ThreadSanitizer: data race",
        crates: &[],
        options: ("TSAN_OPTIONS", "halt_on_error=1 suppressions={workspace}/xtask/thread_sanitizer.txt"),
    },
];

/// Runs all of them.
///
/// # Errors
/// When a sanitizer finds a fault in the crates, or none in the program that has one.
pub fn run() -> Result<()> {
    let host = host()?;
    SANITIZERS.iter().try_for_each(|sanitizer| sanitizer.run(&host))?;
    if !exists("valgrind") {
        return skipped::note("valgrind: it is not installed");
    }
    valgrind(&host)
}

/// Runs some tests under Valgrind, if it is at hand. It knows no AVX-512, and says so to the program.
fn valgrind(host: &str) -> Result<()> {
    let runner = format!("CARGO_TARGET_{}_RUNNER", host.replace('-', "_").to_uppercase());
    let command = "valgrind --quiet --error-exitcode=1 --leak-check=no".into();
    let test = ["test", "--target", host, "-p", "throng-kernels", "--test", "integration", "--"];
    run_with(env!("CARGO"), &[&test[..], &UNDER_VALGRIND].concat(), &[(&runner, command)])
}

/// The target of this machine. Named in a build, it keeps the compiler's flags from build scripts and macros.
fn host() -> Result<String> {
    let version = output_of("rustc", &["-vV"])?;
    let version = String::from_utf8_lossy(&version);
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

impl Sanitizer {
    fn run(&self, host: &str) -> Result<()> {
        self.find_planted(host)?;
        if self.crates.is_empty() {
            return Ok(());
        }
        let mut arguments = vec!["test", "--target", host, "--lib", "--tests", "--no-fail-fast"];
        arguments.extend(PROFILE);
        arguments.extend(self.crates.iter().flat_map(|name| ["-p", name]));
        arguments.push("--");
        arguments.extend(SKIPPED);
        run_with(env!("CARGO"), &arguments, &self.variables())
    }

    /// Variables of a build and a run: each sanitizer has a folder of its own for what is built.
    fn variables(&self) -> [(&'static str, PathBuf); 4] {
        let (name, options) = self.options;
        let options = options.replace("{workspace}", &workspace().to_string_lossy());
        [
            ("RUSTC_BOOTSTRAP", "1".into()),
            ("RUSTFLAGS", format!("-Zsanitizer={} {FLAGS}", self.name).into()),
            ("CARGO_TARGET_DIR", workspace().join("target/sanitizers").join(self.name)),
            (name, options.into()),
        ]
    }

    /// Checks that the planted fault is found, and that the same program without it has none.
    fn find_planted(&self, host: &str) -> Result<()> {
        let example =
            [&PROFILE[..], &["--target", host, "-p", "throng-kernels", "--example", PLANTED]].concat();
        run_with(env!("CARGO"), &[&["build"][..], &example].concat(), &self.variables())?;
        for (fault, is_found) in [("none", false), (self.fault, true)] {
            let run = [&["run", "--quiet"][..], &example, &["--", fault]].concat();
            let mut command = Command::new(env!("CARGO"));
            let output = command.args(run).envs(self.variables()).current_dir(workspace()).output()?;
            let report = String::from_utf8_lossy(&output.stderr);
            if output.status.success() == is_found || report.contains(self.report) != is_found {
                bail!(
                    "sanitizer {}: the planted fault {fault:?} gave {}:\n{report}",
                    self.name,
                    output.status
                );
            }
            println!("sanitizer {}: the planted fault {fault:?} was judged right", self.name);
        }
        Ok(())
    }
}
