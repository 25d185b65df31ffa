//! `throng plan`: the smallest or cheapest fleet that meets a load, or the highest load of a fleet. Reads
//! files and writes tables, JSON and a page; `throng-plan` computes.

mod autoscale;
mod calibration;
mod layers;
mod model;
mod page;
mod recorded;
mod setups;
mod simulation;
mod table;
mod vary;
mod verify;
mod view;
mod weights;

use anyhow::{Context, Result, bail};
use throng_plan::fleet::{FleetPlan, Setup, price_per_million};
use throng_plan::load::requests_of_people;
use throng_plan::replica::{Batching, Targets};
use throng_plan::search::{Answers, Question};
use throng_plan::{Catalogue, Load, PlanError};

use crate::args::{PlanArgs, PlanCommand, PlanCommandArgs, PlanLoadArgs};
use crate::process::output;
pub(super) use calibration::this_machine;
use model::PlannedModel;
use model::shape_of;
pub(super) use model::shape_of as planned_shape;
pub(super) use recorded::page_maker;
use view::{FleetView, PlanView, PointView, RefusalView, times};

/// Number of points of the curve of load and times.
const CURVE_POINTS: u32 = 40;

/// Number of times that the rate of people is recomputed from the time in which the best fleet answers.
const PEOPLE_ROUNDS: u32 = 4;

/// Runs the command.
///
/// # Errors
/// When the arguments are invalid, files cannot be read, or no fleet meets the load.
pub fn run(arguments: &PlanCommandArgs) -> Result<()> {
    match &arguments.command {
        Some(PlanCommand::Autoscale(arguments)) => autoscale::run(arguments),
        None => run_plan(&recorded::recorded_load(&arguments.plan)?.0),
    }
}

fn run_plan(arguments: &PlanArgs) -> Result<()> {
    let catalogue = setups::catalogue(arguments)?;
    if arguments.list_machines {
        output::line(table::machines(&catalogue))?;
        return Ok(());
    }
    if let Some(variation) = &arguments.vary {
        return vary::run(arguments, &catalogue, variation);
    }
    let planned = model::planned(arguments)?;
    let plan = plan(arguments, &catalogue, &planned)?;
    write_page(arguments, &plan)?;
    if arguments.json {
        output::line(serde_json::to_string(&plan)?)?;
    } else {
        print(&plan, arguments.top)?;
    }
    if plan.fleets.is_empty() {
        bail!("no machine serves this model and load: see the reasons above");
    }
    Ok(())
}

/// Writes the page of a plan, if one is requested.
fn write_page(arguments: &PlanArgs, plan: &PlanView) -> Result<()> {
    let Some(path) = &arguments.html else { return Ok(()) };
    std::fs::write(path, page::page(plan)?).with_context(|| format!("--html {}", path.display()))?;
    output::note(format_args!("the page is {}", path.display()));
    Ok(())
}

/// A question with the ways that were compared, and the answers.
struct Answered {
    setups: Vec<Setup>,
    question: Question,
    answers: Answers,
}

/// The plan of a model.
fn plan(arguments: &PlanArgs, catalogue: &Catalogue, planned: &PlannedModel) -> Result<PlanView> {
    let answered = answer(arguments, catalogue, planned)?;
    let mut plan = view_of(arguments, catalogue, planned, &answered);
    let Answered { setups, question, answers } = &answered;
    if let (Some(seconds), Some((idx, best))) = (arguments.simulate, answers.plans.first()) {
        let load = load_of(question, best);
        plan.simulation = Some(simulation::simulated(arguments, &setups[*idx], best, &load, seconds)?);
    }
    Ok(plan)
}

/// Compares the ways to serve a model.
fn answer(arguments: &PlanArgs, catalogue: &Catalogue, planned: &PlannedModel) -> Result<Answered> {
    let setups = setups::setups(arguments, catalogue, planned)?;
    let mut question = Question {
        load: setups::load(&arguments.load)?,
        targets: setups::targets(arguments),
        n_spare: arguments.fleet.spare,
        n_replicas: arguments.fleet.replicas,
        goal: setups::goal(arguments.goal),
    };
    let mut answers = question.answer(&setups)?;
    if let Some(people) = arguments.load.people {
        for _ in 0..PEOPLE_ROUNDS {
            let Some((_, best)) = answers.plans.first() else { break };
            let rate = requests_of_people(people, best.steady.answer_s, arguments.load.pause)?;
            question.load = question.load.at(rate);
            answers = question.answer(&setups)?;
        }
    }
    Ok(Answered { setups, question, answers })
}

/// The answers as numbers to show.
fn view_of(
    arguments: &PlanArgs,
    catalogue: &Catalogue,
    planned: &PlannedModel,
    answered: &Answered,
) -> PlanView {
    let Answered { setups, question, answers } = answered;
    let fleets = fleets(arguments, question, answers, setups);
    let refused = refusals(answers, setups);
    let mut notes = verify::notes(arguments, planned, catalogue, fleets.first());
    notes.extend(fleets.first().and_then(|best| part_of_highest(arguments, question, best)));
    PlanView::new(&planned.shape, question, (fleets, refused), notes)
}

/// A note about the requested load, for a fleet of a given size, whose highest load is shown.
fn part_of_highest(arguments: &PlanArgs, question: &Question, best: &FleetView) -> Option<String> {
    question.n_replicas?;
    let PlanLoadArgs { rate, users, people, .. } = arguments.load;
    rate.or(users).or(people)?;
    let wanted = question.load.requests_per_s;
    Some(format!(
        "With --replicas the load is the highest that the fleet takes: {} requests/s are {:.1} % of that of {}.",
        table::rate(wanted),
        100.0 * wanted / best.highest_requests_per_s,
        best.name,
    ))
}

fn print(plan: &PlanView, top: usize) -> Result<()> {
    output::line(table::introduction(plan))?;
    if !plan.fleets.is_empty() {
        output::line(table::fleets(plan, top))?;
    }
    if let Some(simulation) = &plan.simulation {
        output::line(table::simulation(simulation))?;
    }
    if let Some(autoscaled) = &plan.autoscale {
        output::line(table::autoscaled(autoscaled))?;
    }
    if !plan.refused.is_empty() {
        output::line(table::refusals(&plan.refused))?;
    }
    for note in &plan.notes {
        output::line(note)?;
    }
    Ok(())
}

/// The load of a fleet: that of the question, or the highest one of a given number of replicas.
fn load_of(question: &Question, plan: &FleetPlan) -> Load {
    match question.n_replicas {
        Some(_) => question.load.at(plan.highest_rate),
        None => question.load,
    }
}

/// The best fleets with their curves.
fn fleets(arguments: &PlanArgs, question: &Question, answers: &Answers, setups: &[Setup]) -> Vec<FleetView> {
    let shown = answers.plans.iter().take(arguments.top.max(1));
    let view = |(idx, plan): &(usize, FleetPlan)| {
        let load = load_of(question, plan);
        FleetView::new(plan, batches(plan.batching, setups), &load, curve(&setups[*idx], plan, &load))
    };
    shown.map(view).collect()
}

/// Ways to serve the model that cannot meet the load, with the reason.
fn refusals(answers: &Answers, setups: &[Setup]) -> Vec<RefusalView> {
    let view = |(idx, reason): &(usize, PlanError)| RefusalView {
        setup: setups[*idx].name() + &batches(setups[*idx].batching, setups),
        reason: reason.to_string(),
    };
    answers.refused.iter().map(view).collect()
}

/// The part of a name that distinguishes bounds of batches; empty if all setups have the same.
fn batches(batching: Batching, setups: &[Setup]) -> String {
    if setups.iter().all(|setup| setup.batching == batching) {
        return String::new();
    }
    format!(", steps of {} sequences and {} tokens", batching.max_sequences, batching.max_batch_tokens)
}

/// Times by load, up to the load that the fleet answers at all.
fn curve(setup: &Setup, plan: &FleetPlan, load: &Load) -> Vec<PointView> {
    let highest = setup.highest_rates(load, &Targets::default());
    let most = highest.map_or(0.0, |highest| highest.of(plan.n_replicas, plan.n_prefill));
    let point = |i: u32| {
        let rate = most * f64::from(i) / f64::from(CURVE_POINTS);
        let steady = setup.steady(&load.at(rate), plan.n_replicas, plan.n_prefill).ok()?;
        let tokens_per_s = rate * load.output.mean;
        Some(PointView {
            requests_per_s: rate,
            output_tokens_per_s: tokens_per_s,
            first_token: times(steady.first_token),
            gap: times(steady.gap),
            price_per_million_tokens: plan.price_per_hour.map(|price| price_per_million(price, tokens_per_s)),
            joules_per_token: plan.watts.map(|watts| watts / tokens_per_s),
            kv_cache_used: steady.cache_share,
            running: steady.n_running,
        })
    };
    (1..=CURVE_POINTS).filter_map(point).collect()
}
