//! `throng plan`: the smallest or cheapest fleet that meets a load, or the highest load of a fleet. Reads
//! files and writes tables, JSON and a page; `throng-plan` computes.

mod calibration;
mod model;
mod page;
mod setups;
mod simulation;
mod table;
mod vary;
mod verify;
mod view;

use anyhow::{Context, Result, bail};
use throng_plan::fleet::{FleetPlan, Layout, Setup, price_per_million};
use throng_plan::load::requests_of_people;
use throng_plan::replica::{Role, Targets};
use throng_plan::search::{Answers, Question};
use throng_plan::{Catalogue, Load};

use crate::args::PlanArgs;
use crate::process::output;
pub(super) use calibration::this_machine;
use model::PlannedModel;
pub(super) use model::shape_of as planned_shape;
use view::{FleetView, PlanView, PointView, times};

/// Points of the curve of load and times.
const CURVE_POINTS: u32 = 40;

/// Times that the rate of people is computed anew from how long the best fleet answers.
const PEOPLE_ROUNDS: u32 = 4;

/// Runs the command.
///
/// # Errors
/// When the arguments make no sense, files cannot be read, or no fleet meets the load.
pub fn run(arguments: &PlanArgs) -> Result<()> {
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
    if let Some(path) = &arguments.html {
        std::fs::write(path, page::page(&plan)?).with_context(|| format!("--html {}", path.display()))?;
        output::note(format_args!("the page is {}", path.display()));
    }
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

/// The plan of a model.
fn plan(arguments: &PlanArgs, catalogue: &Catalogue, planned: &PlannedModel) -> Result<PlanView> {
    let setups = setups::setups(arguments, catalogue, &planned.shape)?;
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
    let fleets = fleets(arguments, &question, &answers, &setups);
    let notes = verify::notes(arguments, planned, catalogue, fleets.first());
    let mut plan = PlanView::new(&planned.shape, &question.load, &question.targets, fleets, &answers, notes);
    if let (Some(seconds), Some((idx, best))) = (arguments.simulate, answers.plans.first()) {
        let load = load_of(&question, best);
        plan.simulation = Some(simulation::simulated(arguments, &setups[*idx], best, &load, seconds)?);
    }
    Ok(plan)
}

fn print(plan: &PlanView, top: usize) -> Result<()> {
    output::line(table::introduction(plan))?;
    if !plan.fleets.is_empty() {
        output::line(table::fleets(plan, top))?;
    }
    if let Some(simulation) = &plan.simulation {
        output::line(table::simulation(simulation))?;
    }
    if !plan.refused.is_empty() {
        output::line(table::refusals(plan))?;
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
        FleetView::new(plan, &load, curve(&setups[*idx], plan, &load))
    };
    shown.map(view).collect()
}

/// Times by load, up to the load that the fleet answers at all.
fn curve(setup: &Setup, plan: &FleetPlan, load: &Load) -> Vec<PointView> {
    let role = if plan.layout == Layout::Apart { Role::Decode } else { Role::Both };
    let Ok(replica) = setup.replica(load, role) else { return Vec::new() };
    let most = replica.highest_rate(load, &Targets::default()).unwrap_or(0.0);
    let point = |i: u32| {
        let each = most * f64::from(i) / f64::from(CURVE_POINTS);
        let steady = replica.steady(&load.at(each)).ok()?;
        let all = each * plan.n_replicas as f64;
        let tokens_per_s = all * load.output.mean;
        Some(PointView {
            requests_per_s: all,
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
