//! A plan as tables for people.

use comfy_table::{CellAlignment, Table, presets};
use throng_plan::Catalogue;
use throng_plan::machine::Machine;

use super::view::{AutoscaleView, DayRunView, FleetView, PlanView, RefusalView, SimulationView};
use crate::kv_budget::show;

/// Reasons of refused ways that are shown without --json.
const MAX_REASONS: usize = 8;

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

/// The lines above the table.
pub fn introduction(plan: &PlanView) -> String {
    let model = &plan.model;
    let load = &plan.load;
    let mut active = String::new();
    if model.active_parameters < 0.9 * model.parameters {
        active = format!(" ({} active)", count(model.active_parameters));
    }
    let mut cache = format!("{} of keys and values a token", show(model.kv_bytes_per_token as u64));
    if model.state_bytes > 0.0 {
        cache += &format!(", {} of states a sequence", show(model.state_bytes as u64));
    }
    let target = |name: &str, ms: Option<f64>| ms.map(|ms| format!("p99 {name} within {}", time(ms)));
    let targets: Vec<String> =
        [target("first token", plan.targets.first_token_p99_ms), target("gap", plan.targets.gap_p99_ms)]
            .into_iter()
            .flatten()
            .collect();
    let targets = if targets.is_empty() { "no targets".to_owned() } else { targets.join(", ") };
    format!(
        "{}: {} parameters{active}, {} of weights, {cache}\n{} requests/s of {:.0} + {:.0} tokens, {:.0} % of prompts cached; {targets}",
        model.name,
        count(model.parameters),
        show(model.weight_bytes as u64),
        rate(load.requests_per_s),
        load.prompt_tokens,
        load.output_tokens,
        100.0 * (load.cached_share + load.host_cached_share),
    )
}

/// Table of the fleets, one on each row.
pub fn fleets(plan: &PlanView, top: usize) -> Table {
    let has_price = has_price(plan);
    let mut table = table();
    table.set_header(header_of(has_price));
    for fleet in plan.fleets.iter().take(top) {
        table.add_row(row(fleet, has_price));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn row(fleet: &FleetView, has_price: bool) -> Vec<String> {
    let optional = |value: Option<f64>, show: fn(f64) -> String| value.map_or_else(|| "?".to_owned(), show);
    let mut row = vec![
        fleet.name.clone(),
        fleet.devices.to_string(),
        format!("{:.0} %", 100.0 * fleet.utilization),
        rate(fleet.highest_requests_per_s),
        time(fleet.first_token.p99_ms),
        time(fleet.gap.p99_ms),
        time(fleet.answer_ms),
        rate(fleet.output_tokens_per_s),
        format!("{:.0} of {:.0}", fleet.running.ceil(), fleet.max_running),
        format!("{:.0} %", 100.0 * fleet.kv_cache_used),
        optional(fleet.watts, |watts| format!("{:.2}", watts / 1e3)),
        optional(fleet.joules_per_token, |joules| format!("{joules:.2}")),
    ];
    if has_price {
        row.push(optional(fleet.price_per_hour, |price| format!("{price:.2}")));
        row.push(optional(fleet.price_per_million_tokens, |price| format!("{price:.2}")));
    }
    row.push(optional(fleet.step_error_p90, |error| format!("{:.0} %", 100.0 * error)));
    row
}

/// A simulation in two lines.
pub fn simulation(simulation: &SimulationView) -> String {
    format!(
        "simulated {}: first token p99 {} (± {:.0} % between runs), gap p99 {} (± {:.0} %), {} tokens/s",
        simulation.about,
        time(simulation.first_token.p99_ms),
        100.0 * simulation.first_token_p99_spread,
        time(simulation.gap.p99_ms),
        100.0 * simulation.gap_p99_spread,
        rate(simulation.output_tokens_per_s),
    )
}

const SAVES_NOTHING: &str = "this policy saves nothing: it keeps more replicas than the plan; a higher --target-sequences keeps fewer\n";

/// A day with the autoscaler beside a day without.
pub fn autoscaled(day: &AutoscaleView) -> String {
    let mut table = table();
    table.set_header([
        "fleet",
        "replicas",
        "most",
        "replica hours",
        "price",
        "first token p50",
        "p99",
        "gap p99",
        "without an answer",
    ]);
    let row = |run: &DayRunView| {
        [
            run.name.clone(),
            rate(run.mean_replicas),
            rate(run.most_replicas),
            rate(run.replica_hours),
            run.price.map_or_else(|| "?".to_owned(), |price| format!("{price:.2}")),
            time(run.first_token_p50_ms),
            time(run.first_token.p99_ms),
            time(run.gap.p99_ms),
            format!("{:.2} %", 100.0 * run.failed_share),
        ]
    };
    day.fleets.iter().for_each(|run| {
        table.add_row(row(run));
    });
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let hours = |name: &str| day.fleets.iter().find(|run| run.name == name).map(|run| run.replica_hours);
    let saves_nothing = hours("autoscaled") > hours("fixed");
    format!(
        "a day of {} requests, {:.0} % of the fleet simulated\n{table}\n{}\
         {} changes, {} turns between growing and shrinking, at most {} within an hour; {} starts from no replica, \
         {} requests found none",
        day.requests,
        100.0 * day.part,
        if saves_nothing { SAVES_NOTHING } else { "" },
        day.changes,
        day.turns,
        day.most_turns_an_hour,
        day.starts_from_zero,
        day.unserved,
    )
}

/// The best fleet of each of some plans.
pub fn variations(plans: &[(String, PlanView)]) -> Table {
    let mut table = table();
    let mut header = vec!["with".to_owned()];
    header.extend(header_of(plans.iter().any(|(_, plan)| has_price(plan))));
    table.set_header(header);
    for (name, plan) in plans {
        let mut cells = vec![name.clone()];
        match plan.fleets.first() {
            Some(fleet) => cells.extend(row(fleet, has_price(plan))),
            None => cells.push("no fleet".to_owned()),
        }
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn has_price(plan: &PlanView) -> bool {
    plan.fleets.iter().any(|fleet| fleet.price_per_hour.is_some())
}

fn header_of(has_price: bool) -> Vec<String> {
    let mut header = vec![
        "fleet",
        "devices",
        "load",
        "most req/s",
        "first token p99",
        "gap p99",
        "answer",
        "tokens/s",
        "batch",
        "KV used",
        "kW",
        "J/token",
    ];
    if has_price {
        header.extend(["price/h", "per 1M tokens"]);
    }
    header.push("± steps");
    header.into_iter().map(str::to_owned).collect()
}

/// The reasons why ways cannot meet the load, each with the first of its ways and the number of the others.
pub fn refusals(refused: &[RefusalView]) -> String {
    let mut groups: Vec<(&RefusalView, usize)> = Vec::new();
    for refusal in refused {
        match groups.iter_mut().find(|(first, _)| first.reason == refusal.reason) {
            Some((_, n)) => *n += 1,
            None => groups.push((refusal, 1)),
        }
    }
    let line = |(first, n): &(&RefusalView, usize)| {
        let others = match n - 1 {
            0 => String::new(),
            1 => " and 1 other".to_owned(),
            n => format!(" and {n} others"),
        };
        format!("not {}{others}: {}", first.setup, first.reason)
    };
    let shown = &groups[..groups.len().min(MAX_REASONS)];
    let mut lines: Vec<String> = shown.iter().map(line).collect();
    let n_more = refused.len() - shown.iter().map(|(_, n)| n).sum::<usize>();
    if n_more > 0 {
        lines.push(format!("and {n_more} more; --json lists all"));
    }
    lines.join("\n")
}

/// The machines with their figures.
pub fn machines(catalogue: &Catalogue) -> Table {
    let mut table = table();
    table.set_header(["machine", "figure", "value", "read", "source"]);
    for machine in &catalogue.machines {
        let Machine { name, title, .. } = machine;
        table.add_row([name.as_str(), title.as_str(), "", "", ""]);
        for (figure_name, figure) in machine.figures() {
            let source = figure.source.as_ref().and_then(|source| catalogue.sources.get(source));
            table.add_row([
                "",
                figure_name,
                &format!("{:.4e}", figure.value),
                figure.read.as_deref().unwrap_or_default(),
                source.map_or("your own", String::as_str),
            ]);
        }
    }
    table
}

/// A time in milliseconds with a readable unit.
pub fn time(ms: f64) -> String {
    match ms {
        ms if !ms.is_finite() => "?".to_owned(),
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms if ms < 1000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.1} s", ms / 1e3),
    }
}

pub(super) fn rate(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.2}") } else { format!("{rate:.0}") }
}

fn count(n: f64) -> String {
    match n {
        n if n >= 1e12 => format!("{:.2} T", n / 1e12),
        n if n >= 1e9 => format!("{:.2} B", n / 1e9),
        n => format!("{:.1} M", n / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_reasons_are_shown_once_with_their_number() {
        let refusal = |setup: String, reason: &str| RefusalView { setup, reason: reason.to_owned() };
        let mut refused: Vec<RefusalView> =
            (0..48).map(|n| refusal(format!("h100 x {n}"), "the load is too high")).collect();
        refused.insert(1, refusal("l4".to_owned(), "the model does not fit"));
        assert_eq!(
            refusals(&refused),
            "not h100 x 0 and 47 others: the load is too high\nnot l4: the model does not fit"
        );
        let single: Vec<RefusalView> =
            (0..MAX_REASONS + 2).map(|n| refusal(format!("box {n}"), &format!("reason {n}"))).collect();
        let text = refusals(&single);
        assert_eq!(text.lines().count(), MAX_REASONS + 1);
        assert!(text.ends_with("and 2 more; --json lists all"), "{text}");
        assert_eq!(refusals(&single[..1]), "not box 0: reason 0");
    }
}
