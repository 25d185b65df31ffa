//! `cargo xtask kill`: runs the test that kills and stops workers in the middle of streams, for as many rounds as are wanted. Does not
//! know what it checks.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::shell::run_with;

/// The flags, and the variables by which the test is told.
const VARIABLES: [(&str, &str); 3] =
    [("--rounds", "THRONG_KILLS"), ("--stops", "THRONG_STOPS"), ("--seed", "THRONG_SEED")];

/// Kills workers `--rounds N` times and stops them `--stops N` times; `--release` takes the release binary.
pub fn run(arguments: &[&str]) -> Result<()> {
    let mut variables = Vec::new();
    let mut line = vec!["test", "--package", "throng-cli", "--test", "fleet"];
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match (VARIABLES.iter().find(|(flag, _)| flag == argument), rest.as_slice().first()) {
            (Some((_, name)), Some(value)) if value.parse::<u64>().is_ok() => {
                variables.push((*name, PathBuf::from(value)));
                rest.next();
            }
            _ if *argument == "--release" => line.push("--release"),
            _ => bail!("{argument}: the flags are --rounds N, --stops N, --seed N, --release"),
        }
    }
    line.extend(["--", "--nocapture", "streams_outlive_their_workers"]);
    run_with(env!("CARGO"), &line, &variables)
}
