//! The project's own tasks. `cargo xtask tidy` checks the house rules, `cargo xtask limits` writes
//! `docs/limits.md`. `cargo xtask test` runs everything a change must pass and installs what the tests need
//! and the machine lacks. `cargo xtask attack` attacks the server, `cargo xtask kill` kills workers, and
//! `cargo xtask dist` packs the binary.

mod attack;
mod dist;
mod kill;
mod shell;
mod test;
mod tidy;

use anyhow::{Result, bail};

const USAGE: &str = "usage: cargo xtask COMMAND

  tidy            the house rules: edges between crates, sizes of files and functions, words, documents
  limits          writes docs/limits.md from the constants in the source
  test            everything a change must pass: formatting, clippy, tidy, licences, tests, clients, browser
  test --nightly  the same with everything that takes long and seldom fails
  test --rust     only what needs nothing but a Rust toolchain and a C compiler
  test --e2e      only the clients and the browser against the real binary
  test --clients  a dozen more client libraries against the real binary; installs 1.2 GB under target/
  test --checkpoints  quantized checkpoints against the libraries that write them; installs 6 GB under target/
  test --sanitizers  kernels and threads under AddressSanitizer and ThreadSanitizer, which must find planted faults first
  attack          every attack on the release binary; --only NAME, --seed N, --quick, --soak MINUTES, --binary PATH,
                  --list, --help
  kill            kills and stops workers of a fleet in the middle of streams; --rounds N, --stops N, --seed N, --release
  dist            release archive and Debian package in target/packages; --binary PATH, --out FOLDER";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["tidy"] => tidy::run(),
        ["limits"] => tidy::write_limits(),
        ["test", flags @ ..] => test::run(flags),
        ["attack", arguments @ ..] => attack::run(arguments),
        ["kill", arguments @ ..] => kill::run(arguments),
        ["dist", arguments @ ..] => dist::run(arguments),
        _ => bail!("{USAGE}"),
    }
}
