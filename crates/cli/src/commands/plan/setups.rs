//! The ways to serve a model that `throng plan` compares: machines, prices and parallelism of the arguments.

use anyhow::{Context, Result, bail};
use throng_plan::cost::calibration::Calibration;
use throng_plan::cost::tables::OperatorTable;
use throng_plan::fleet::{Layout, Setup};
use throng_plan::load::{Crowd, Length, requests_of_people};
use throng_plan::machine::{Figure, Machine, MachineKind};
use throng_plan::replica::{Batching, Speculation, Targets};
use throng_plan::search::Goal;
use throng_plan::{Catalogue, Load, ModelShape, Parallelism};

use super::calibration;
use super::model::PlannedModel;
use crate::args::{PlanArgs, PlanGoal, PlanLoadArgs, PlanPrefill};

/// Maximum number of combinations of machines, parallelism and bounds.
const MAX_SETUPS: usize = 10_000;

/// Requests a second when neither a rate nor people are named.
const DEFAULT_RATE: f64 = 1.0;

/// Most sequences and most tokens of a step when none are named.
const DEFAULT_SEQUENCES: u32 = 256;
const DEFAULT_TOKENS: u32 = 2048;

/// Assumed seconds of an answer for which people wait.
const ASSUMED_ANSWER_S: f64 = 10.0;

/// The built-in machines and those of the operator, with prices.
///
/// # Errors
/// When a file is malformed or a price is of no machine.
pub fn catalogue(arguments: &PlanArgs) -> Result<Catalogue> {
    let mut catalogue = Catalogue::built_in();
    if let Some(path) = &arguments.fleet.machines {
        let text = std::fs::read_to_string(path).with_context(|| format!("--machines {}", path.display()))?;
        catalogue.extend(Catalogue::parse(&path.display().to_string(), &text)?);
    }
    for entry in &arguments.fleet.price {
        let (name, price) = entry.split_once('=').context("--price: expected MACHINE=PRICE")?;
        let value: f64 = price.parse().with_context(|| format!("--price: {price} is not a number"))?;
        catalogue.find(name).context("--price")?;
        let figure = own_figure(value);
        for machine in catalogue.machines.iter_mut().filter(|machine| machine.name == name) {
            machine.price_per_hour = Some(figure.clone());
            machine.check().context("--price")?;
        }
    }
    if let Some(bytes) = arguments.fleet.machine_memory {
        for machine in catalogue.machines.iter_mut().filter(|machine| machine.memory_bytes.is_none()) {
            machine.memory_bytes = Some(own_figure(bytes as f64));
        }
    }
    Ok(catalogue)
}

fn own_figure(value: f64) -> Figure {
    Figure { value, source: None, read: None }
}

/// The load that the arguments describe.
///
/// # Errors
/// When a number is invalid.
pub fn load(arguments: &PlanLoadArgs) -> Result<Load> {
    let requests_per_s = match (arguments.rate, arguments.users, arguments.people) {
        (Some(rate), _, _) => rate,
        (_, Some(users), _) => {
            let (requests_per_day, peak_factor) = (arguments.requests_per_day, arguments.peak_factor);
            Crowd { users, requests_per_day, peak_factor }.peak_requests_per_s()?
        }
        (_, _, Some(people)) => requests_of_people(people, ASSUMED_ANSWER_S, arguments.pause)?,
        (None, None, None) => DEFAULT_RATE,
    };
    let length = |mean, most| Length { mean, variation: arguments.variation, most };
    let load = Load {
        requests_per_s,
        prompt: length(arguments.prompt_tokens, arguments.most_prompt_tokens),
        output: length(arguments.output_tokens, arguments.most_output_tokens),
        cached_share: arguments.cached_share,
        host_cached_share: arguments.host_cached_share,
    };
    load.check()?;
    Ok(load)
}

/// The targets of the arguments.
pub fn targets(arguments: &PlanArgs) -> Targets {
    let seconds = |ms: Option<f64>| ms.map(|ms| ms * 1e-3);
    Targets { first_token_s: seconds(arguments.first_token_ms), gap_s: seconds(arguments.gap_ms) }
}

/// The goal of the arguments.
pub fn goal(goal: PlanGoal) -> Goal {
    match goal {
        PlanGoal::Smallest => Goal::Smallest,
        PlanGoal::Cheapest => Goal::Cheapest,
        PlanGoal::Power => Goal::LeastPower,
    }
}

/// All combinations of the arguments.
///
/// # Errors
/// When a machine is unknown, or there are too many combinations.
pub fn setups(arguments: &PlanArgs, catalogue: &Catalogue, planned: &PlannedModel) -> Result<Vec<Setup>> {
    let fleet = &arguments.fleet;
    let measured = fleet.calibration.as_deref().map(calibration::read).transpose()?;
    let this_machine = calibration::this_machine(fleet.machine_memory);
    let machines: Vec<&Machine> = match fleet.machine.as_slice() {
        [] if measured.is_some() => vec![&this_machine],
        [] => catalogue.machines.iter().collect(),
        names => names.iter().map(|name| catalogue.find(name)).collect::<Result<_, _>>()?,
    };
    let speculation = fleet
        .speculative_acceptance
        .map(|acceptance| Speculation { n_drafts: fleet.speculative_tokens, acceptance });
    let batchings = batchings(arguments, measured.as_deref(), speculation);
    let n_setups = machines.len()
        * fleet.tensor_parallel.len()
        * fleet.pipeline_parallel.len()
        * fleet.expert_parallel.len()
        * fleet.prefill.len()
        * batchings.len();
    if n_setups > MAX_SETUPS {
        bail!("{n_setups} combinations to compare are more than {MAX_SETUPS}: name fewer machines or values");
    }
    let mut setups = Vec::with_capacity(n_setups);
    let efficiency = match (&fleet.operators, machines.as_slice()) {
        (None, _) => None,
        (Some(path), [machine]) => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path).with_context(|| format!("--operators {name}"))?;
            Some(OperatorTable::parse(&name, &text)?.efficiency(machine, &name)?)
        }
        (Some(_), _) => bail!("--operators: name the one machine of the table with --machine"),
    };
    for machine in machines {
        let model = model_on(machine, planned);
        for parallelism in parallelisms(arguments) {
            for layout in fleet.prefill.iter().map(|prefill| layout(*prefill)) {
                for &batching in &batchings {
                    setups.push(Setup {
                        machine: machine.clone(),
                        model: model.clone(),
                        parallelism,
                        batching,
                        layout,
                        memory_share: fleet.memory_share,
                        step_overhead_s: fleet.step_overhead_us * 1e-6,
                        efficiency: efficiency.clone(),
                        measured: measured.clone(),
                    });
                }
            }
        }
    }
    Ok(setups)
}

/// The model as engines of this machine hold it: on processors, as `throng serve` does.
fn model_on(machine: &Machine, planned: &PlannedModel) -> ModelShape {
    let weights = planned.held_weights.filter(|_| machine.kind == MachineKind::Processor);
    ModelShape { weights: weights.unwrap_or(planned.shape.weights), ..planned.shape.clone() }
}

fn layout(prefill: PlanPrefill) -> Layout {
    match prefill {
        PlanPrefill::Together => Layout::Together,
        PlanPrefill::Apart => Layout::Apart,
    }
}

fn parallelisms(arguments: &PlanArgs) -> Vec<Parallelism> {
    let fleet = &arguments.fleet;
    if fleet.calibration.is_some() {
        return vec![Parallelism::NONE];
    }
    let mut all = Vec::new();
    for &tensor in &fleet.tensor_parallel {
        for &pipeline in &fleet.pipeline_parallel {
            all.extend(fleet.expert_parallel.iter().map(|&expert| Parallelism { tensor, pipeline, expert }));
        }
    }
    all
}

/// The bounds of batches to compare. Those that are not given are within the measured steps.
fn batchings(
    arguments: &PlanArgs,
    measured: Option<&Calibration>,
    speculation: Option<Speculation>,
) -> Vec<Batching> {
    let fleet = &arguments.fleet;
    let values = |given: &[u32], default: u32, most: Option<f64>| match given {
        [] => vec![default.min(most.map_or(default, |most| most as u32))],
        given => given.to_vec(),
    };
    let sequences = values(&fleet.max_num_seqs, DEFAULT_SEQUENCES, measured.map(|of| of.sequences.high));
    let tokens = values(&fleet.max_num_batched_tokens, DEFAULT_TOKENS, measured.map(|of| of.tokens.high));
    let mut all = Vec::new();
    for max_sequences in sequences {
        let with = |&max_batch_tokens| Batching { max_sequences, max_batch_tokens, speculation };
        all.extend(tokens.iter().map(with));
    }
    all
}
