//! `throng plan --vary NAME=VALUES`: the best fleet for each value of one argument.

use anyhow::{Context, Result, bail};
use throng_plan::Catalogue;

use super::{model, plan, table};
use crate::args::PlanArgs;
use crate::process::output;

/// Arguments that can be varied.
const NAMES: &str = "rate, prompt-tokens, output-tokens, cached-share, host-cached-share, spare, replicas, weights, \
                     kv-cache-dtype, max-num-seqs, max-num-batched-tokens, speculative-acceptance, memory-share";

/// Plans for each value, and prints the best fleet of each.
///
/// # Errors
/// When the argument cannot be varied, or a value is invalid.
pub fn run(arguments: &PlanArgs, catalogue: &Catalogue, variation: &str) -> Result<()> {
    let (name, values) = variation.split_once('=').context("--vary: expected NAME=VALUE,VALUE")?;
    let mut rows = Vec::new();
    for value in values.split(',') {
        let varied = with(arguments, name, value)?;
        let planned = model::planned(&varied)?;
        rows.push((format!("{name} {value}"), plan(&varied, catalogue, &planned)?));
    }
    if arguments.json {
        for (value, plan) in &rows {
            let line = serde_json::json!({ "varied": value, "plan": plan });
            output::line(line)?;
        }
        return Ok(());
    }
    output::line(table::variations(&rows))?;
    for (value, plan) in &rows {
        if let Some(simulation) = &plan.simulation {
            output::line(format_args!("{value}: {}", table::simulation(simulation)))?;
        }
    }
    Ok(())
}

/// Copies the arguments with another value of one of them.
fn with(arguments: &PlanArgs, name: &str, value: &str) -> Result<PlanArgs> {
    let mut varied = arguments.clone();
    let number = || value.parse::<f64>().with_context(|| format!("--vary: {name} is {value}, not a number"));
    let whole =
        || value.parse::<u32>().with_context(|| format!("--vary: {name} is {value}, not a whole number"));
    match name {
        "rate" => varied.load.rate = Some(number()?),
        "prompt-tokens" => varied.load.prompt_tokens = number()?,
        "output-tokens" => varied.load.output_tokens = number()?,
        "cached-share" => varied.load.cached_share = number()?,
        "host-cached-share" => varied.load.host_cached_share = number()?,
        "spare" => varied.fleet.spare = u64::from(whole()?),
        "replicas" => varied.fleet.replicas = Some(u64::from(whole()?)),
        "weights" => varied.weights = Some(value.to_owned()),
        "kv-cache-dtype" => varied.kv_cache_dtype = value.to_owned(),
        "max-num-seqs" => varied.fleet.max_num_seqs = vec![whole()?],
        "max-num-batched-tokens" => varied.fleet.max_num_batched_tokens = vec![whole()?],
        "speculative-acceptance" => varied.fleet.speculative_acceptance = Some(number()?),
        "memory-share" => varied.fleet.memory_share = number()?,
        _ => bail!("--vary: {name} cannot be varied (there are: {NAMES})"),
    }
    Ok(varied)
}
