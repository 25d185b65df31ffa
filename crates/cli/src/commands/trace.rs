//! `throng trace profile FILE`: lengths and rates of a load, and the hit rates of prefix caches.

use anyhow::{Context, Result};
use throng_sim::profile::{Lengths, TraceProfile, profile};

use super::replay::load_of;
use crate::args::{TraceArgs, TraceCommand, TraceProfileArgs};
use crate::process::output;

/// Bytes of a gigabyte.
const GB: f64 = 1e9;

/// Runs the command.
///
/// # Errors
/// When the file cannot be read.
pub fn run(arguments: &TraceArgs) -> Result<()> {
    match &arguments.command {
        TraceCommand::Profile(arguments) => print_profile(arguments),
    }
}

fn print_profile(arguments: &TraceProfileArgs) -> Result<()> {
    let mut load = load_of(&arguments.file)?;
    let tokens = |gb: &f64| (gb * GB / arguments.kv_bytes as f64) as u64;
    let capacities: Vec<u64> = arguments.cache.iter().map(tokens).collect();
    let profile =
        profile(&mut *load, &capacities).with_context(|| format!("{}", arguments.file.display()))?;
    if arguments.json {
        output::line(serde_json::to_string(&profile)?)?;
        return Ok(());
    }
    print(&profile, arguments)
}

fn print(profile: &TraceProfile, arguments: &TraceProfileArgs) -> Result<()> {
    output::line(format_args!(
        "requests:  {} in {:.0} s: {:.2} a second, {:.2} in the busiest minute; gaps vary by {:.2}",
        profile.n_requests, profile.duration_s, profile.mean_rate, profile.peak_rate, profile.gap_cv
    ))?;
    let lengths = |name: &str, lengths: &Lengths, n: u64| {
        let Lengths { mean, p50, p90, p99, max } = lengths;
        output::line(format_args!(
            "{name}  {n} tokens: mean {mean:.0}, p50 {p50}, p90 {p90}, p99 {p99}, longest {max}"
        ))
    };
    lengths("prompts: ", &profile.prompt, profile.prompt_tokens)?;
    lengths("outputs: ", &profile.output, profile.output_tokens)?;
    let sizes = arguments.cache.iter().map(|gb| format!("{gb} GB")).chain(["any size".to_owned()]);
    for (size, hits) in sizes.zip(&profile.cache) {
        output::line(format_args!(
            "a cache of {size:>9} finds {:5.1} % of the prompt tokens",
            100.0 * hits.hit_share
        ))?;
    }
    Ok(())
}
