//! `cargo xtask kill`: runs the tests that kill, stop and cut off workers in the middle of streams, for as
//! many rounds as are wanted. Does not know what they check.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::shell::run_with;

/// Flags of the command with the environment variables by which the test reads them.
const VARIABLES: [(&str, &str); 4] = [
    ("--rounds", "THRONG_KILLS"),
    ("--stops", "THRONG_STOPS"),
    ("--partitions", "THRONG_PARTITIONS"),
    ("--seed", "THRONG_SEED"),
];

/// Kills workers `--rounds N` times, stops them `--stops N` times, and lets each fault of the network happen
/// `--partitions N` times; what is not named does not happen. `--release` takes the release binary.
pub fn run(arguments: &[&str]) -> Result<()> {
    let is_named = |flag: &str| arguments.contains(&flag);
    let unnamed = VARIABLES.iter().filter(|(flag, _)| *flag != "--seed" && !is_named(flag));
    let mut variables: Vec<(&str, PathBuf)> = unnamed.map(|(_, name)| (*name, PathBuf::from("0"))).collect();
    let mut line = vec!["test", "--package", "throng-cli", "--test", "integration"];
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match (VARIABLES.iter().find(|(flag, _)| flag == argument), rest.as_slice().first()) {
            (Some((_, name)), Some(value)) if value.parse::<u64>().is_ok() => {
                variables.push((*name, PathBuf::from(value)));
                rest.next();
            }
            _ if *argument == "--release" => line.push("--release"),
            _ => {
                bail!("{argument}: the flags are --rounds N, --stops N, --partitions N, --seed N, --release")
            }
        }
    }
    line.extend(["--", "--nocapture", "fleet::streams_outlive"]);
    run_with(env!("CARGO"), &line, &variables)
}
