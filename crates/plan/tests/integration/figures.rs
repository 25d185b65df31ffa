//! The figures of docs/planning.md. Each is computed here; the page has them as they are computed.
//! `UPDATE_EXPECT=1` writes them into the page.

use std::path::PathBuf;

use throng_plan::cost::Roofline;
use throng_plan::fleet::{FleetPlan, price_per_million};
use throng_plan::load::{Crowd, requests_of_people};
use throng_plan::machine::ComputeType;
use throng_plan::model_shape::WeightType;
use throng_plan::replica::{Role, Targets};
use throng_plan::{Catalogue, ModelShape, Parallelism};
use throng_sim::cost::StepShape;

use crate::fleets::{load, setup};
use crate::models;

const GIB: f64 = 1_073_741_824.0;

/// Price of an H100 and hour that the page assumes.
const ASSUMED_PRICE: f64 = 2.50;

fn page() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/planning.md")
}

/// Checks that the section of this name in the page has these lines between its marks.
fn check(section: &str, lines: &[String]) {
    let text = std::fs::read_to_string(page()).expect("the page");
    let (begin, end) = (format!("<!-- figures: {section} -->\n"), "<!-- end -->");
    let from =
        text.find(&begin).unwrap_or_else(|| panic!("no figures of {section} in the page")) + begin.len();
    let to = from + text[from..].find(end).expect("an end");
    let expected = format!("\n{}\n\n", lines.join("\n"));
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let updated = format!("{}{expected}{}", &text[..from], &text[to..]);
        return std::fs::write(page(), updated).expect("a writable page");
    }
    assert_eq!(&text[from..to], expected, "UPDATE_EXPECT=1 writes it");
}

fn rows(header: [&str; 2], rows: &[(&str, String)]) -> Vec<String> {
    let head = [format!("| {} | {} |", header[0], header[1]), "| --- | ---: |".to_owned()];
    head.into_iter().chain(rows.iter().map(|(name, value)| format!("| {name} | {value} |"))).collect()
}

/// A whole number with commas.
fn whole(n: f64) -> String {
    let digits = format!("{n:.0}");
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits")).collect();
    groups.join(",")
}

/// A step in which so many sequences decode, each with this context.
fn decode(n: u32, context: u64) -> StepShape {
    StepShape {
        n_sequences: n,
        n_tokens: n,
        n_prompt_tokens: 0,
        n_logits: n,
        n_context_tokens: u64::from(n) * context,
        n_attention_pairs: u64::from(n) * context,
    }
}

fn seconds(machine: &str, model: &ModelShape, tensor: u32, step: &StepShape) -> f64 {
    let machine = Catalogue::built_in().find(machine).expect("in the box").clone();
    Roofline::new(&machine, model, Parallelism::tensor(tensor)).expect("figures").parts(step).total()
}

#[test]
fn keys_and_values_go_by_kv_heads() {
    let model = models::llama_70b();
    let per_token = model.kv_bytes_per_token();
    assert_eq!(per_token, 2.0 * 80.0 * 8.0 * 128.0 * 2.0);
    let by_hidden = 2.0 * 80.0 * model.hidden_size * 2.0;
    assert_eq!(by_hidden / per_token, 8.0);
    let lines = [
        ("one token, by 8 KV heads of 128", format!("{:.0} KiB", per_token / 1024.0)),
        ("a sequence of 4,096 tokens", format!("{:.2} GiB", model.cache_bytes(4096) / GIB)),
        ("the same by the hidden size of 8,192", format!("{:.2} GiB", by_hidden * 4096.0 / GIB)),
        ("factor between them", format!("{:.0}", by_hidden / per_token)),
    ];
    check("keys and values", &rows(["Llama 3.1 70B, bf16", "bytes"], &lines));
}

#[test]
fn decode_is_bound_by_memory_and_prefill_by_compute() {
    let machine = Catalogue::built_in().find("h100").expect("in the box").clone();
    let peak = machine.operations_per_s(ComputeType::Bf16).expect("a figure");
    let bandwidth = machine.bandwidth().expect("a figure");
    let ridge = peak / bandwidth;
    let model = models::llama_8b();
    let weights = model.n_active_parameters() * 2.0;
    let operations = 2.0 * model.n_active_parameters();
    let (one, many) = (operations / weights, 512.0 * operations / weights);
    assert!(one < ridge / 100.0 && many > ridge);
    let lines = [
        ("operations a byte that balance the machine", format!("{ridge:.0}")),
        ("operations a byte, 1 sequence decodes", format!("{one:.0}")),
        ("operations a byte, a prompt of 512 tokens", format!("{many:.0}")),
        ("reading the weights once", format!("{:.2} ms", 1e3 * weights / bandwidth)),
        ("multiplying one token", format!("{:.3} ms", 1e3 * operations / peak)),
        ("multiplying 512 tokens", format!("{:.2} ms", 1e3 * 512.0 * operations / peak)),
    ];
    check("memory and compute", &rows(["Llama 3.1 8B on an H100, by its peaks", ""], &lines));
}

#[test]
fn eight_devices_are_faster_than_one() {
    let model = models::llama_8b();
    let alone = |tensor| seconds("h100", &model, tensor, &decode(1, 500));
    let most = |tensor| {
        let replica = setup("h100", model.clone(), tensor).replica(&load(1.0), Role::Both).expect("fits");
        replica.highest_rate(&load(1.0), &Targets::default()).expect("a rate")
    };
    let rates = [1, 8].map(|tensor| 1.0 / alone(tensor));
    let highest = [1, 8].map(most);
    assert!(rates[1] > 1.2 * rates[0], "eight give more than the rate of one: {rates:?}");
    assert!(rates[1] < 8.0 * rates[0], "and less than eight times: {rates:?}");
    assert!(highest[1] > 1.2 * highest[0] && highest[1] < 8.0 * highest[0], "{highest:?}");
    let lines = [
        ("1 device, one user", format!("{:.0} tokens/s", rates[0])),
        ("8 devices with TP 8, one user", format!("{:.0} tokens/s", rates[1])),
        ("1 device, most requests", format!("{:.0} requests/s", highest[0])),
        ("8 devices with TP 8, most requests", format!("{:.0} requests/s", highest[1])),
        ("8 devices, each with a replica, most requests", format!("{:.0} requests/s", 8.0 * highest[0])),
    ];
    check("eight devices", &rows(["Llama 3.1 8B on H100, 500 + 300 tokens", ""], &lines));
}

#[test]
fn batches_make_the_price_of_a_million_tokens() {
    let model = models::llama_70b();
    let price = 4.0 * ASSUMED_PRICE;
    let of = |n: u32| {
        let rate = f64::from(n) / seconds("h100", &model, 4, &decode(n, 650));
        (rate, price_per_million(price, rate))
    };
    let prices = [1, 16, 64, 256].map(of);
    assert!(prices[0].1 > 50.0 * prices[3].1, "{prices:?}");
    let lines: Vec<(String, String)> = [1, 16, 64, 256]
        .iter()
        .zip(prices)
        .map(|(n, (rate, price))| (format!("{n} at once"), format!("{} tokens/s, {price:.2}", whole(rate))))
        .collect();
    let lines: Vec<(&str, String)> =
        lines.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    check("price", &rows(["Llama 3.1 70B on four H100 at 2.50 an hour each", "1 M output tokens"], &lines));
}

#[test]
fn a_crowd_is_not_served_one_by_one() {
    // As it is often told: a seventh of the weekly users a day, on average, and one answer at a time.
    let told = Crowd { users: 700e6 / 7.0, requests_per_day: 2.0, peak_factor: 1.0 };
    let answer_s = 300.0 * 8e-3;
    let told_machines = told.mean_requests_per_s() * answer_s;
    assert_eq!((told_machines / 100.0).round() * 100.0, 5600.0);
    let crowd = Crowd { users: 700e6, requests_per_day: 2.0, peak_factor: 3.0 };
    let peak = crowd.peak_requests_per_s().expect("sizes");
    let model = models::llama_70b();
    let alone_s = seconds("h100", &model, 8, &decode(1, 650)) * 300.0;
    let targets = Targets { first_token_s: Some(1.0), gap_s: Some(0.1) };
    let plan = setup("h100", model, 8).smallest(&load(peak), &targets, 0).expect("a fleet");
    let batched = peak * alone_s / plan.n_replicas as f64;
    assert!((80.0..120.0).contains(&batched), "almost a hundred: {batched}");
    assert_eq!((peak / told.mean_requests_per_s()).round(), 21.0);
    let lines = [
        (
            "as told: 100 M users a day, 2 requests each, evenly over the day",
            format!("{} requests/s", whole(told.mean_requests_per_s())),
        ),
        ("as told: 300 tokens of 8 ms, one answer at a time", format!("{} machines", whole(told_machines))),
        (
            "700 M users who ask twice a day, mean",
            format!("{} requests/s", whole(crowd.mean_requests_per_s())),
        ),
        ("at the busiest time, 3 times the mean", format!("{} requests/s", whole(peak))),
        ("Llama 3.1 70B, one answer at a time on eight H100", format!("{} machines", whole(peak * alone_s))),
        (
            "the same in batches, first token within 1 s, gaps within 100 ms",
            format!("{} machines", whole(plan.n_replicas as f64)),
        ),
        ("sequences in a batch", format!("{:.0}", plan.steady.n_running)),
    ];
    check("a crowd", &rows(["a crowd", ""], &lines));
}

#[test]
fn an_answer_has_a_latency_budget() {
    let setup = setup("h100", models::llama_70b(), 4);
    let load = load(8.0);
    let steady = setup.replica(&load, Role::Both).and_then(|replica| replica.steady(&load)).expect("a state");
    let prefill = {
        let step = StepShape {
            n_sequences: 1,
            n_tokens: 500,
            n_prompt_tokens: 500,
            n_logits: 1,
            n_context_tokens: 500,
            n_attention_pairs: 125_000,
        };
        seconds("h100", &setup.model, 4, &step)
    };
    let first = steady.first_token.mean;
    assert!(prefill < first && steady.answer_s > 30.0 * first);
    let lines = [
        ("prompt of 500 tokens, alone", format!("{:.0} ms", 1e3 * prefill)),
        ("first token beside others, mean", format!("{:.0} ms", 1e3 * first)),
        ("first token, 99th percentile", format!("{:.0} ms", 1e3 * steady.first_token.p99)),
        ("300 tokens, a step each", format!("{:.1} s", steady.answer_s - first)),
        ("whole answer", format!("{:.1} s", steady.answer_s)),
        ("share of the first token", format!("{:.0} %", 100.0 * first / steady.answer_s)),
    ];
    check("latency", &rows(["Llama 3.1 70B on four H100, 8 requests/s", ""], &lines));
}

fn with_weights(mut model: ModelShape, weights: &str) -> ModelShape {
    model.weights = WeightType::named(weights).expect("a type");
    model
}

fn example(plan: &FleetPlan) -> Vec<(&'static str, String)> {
    vec![
        ("devices", whole(plan.n_devices as f64)),
        ("first token, 99th percentile", format!("{:.0} ms", 1e3 * plan.steady.first_token.p99)),
        ("gap, 99th percentile", format!("{:.0} ms", 1e3 * plan.steady.gap.p99)),
        ("whole answer", format!("{:.1} s", plan.steady.answer_s)),
        ("load", format!("{:.0} %", 100.0 * plan.utilization)),
    ]
}

#[test]
fn a_laptop() {
    let setup = setup("m4-max", with_weights(models::llama_8b(), "q4_0"), 1);
    let rate = 1.0 / 30.0;
    let plan = setup.smallest(&load(rate), &Targets::default(), 0).expect("a fleet");
    assert_eq!(plan.n_devices, 1);
    check(
        "a laptop",
        &rows(["Llama 3.1 8B in Q4_0 on an M4 Max, a request every 30 s", ""], &example(&plan)),
    );
}

#[test]
fn ten_people() {
    let setup = setup("l4", with_weights(models::llama_8b(), "fp8"), 1);
    let mut rate = requests_of_people(10.0, 10.0, 30.0).expect("people");
    let mut plan = setup.smallest(&load(rate), &Targets::default(), 0).expect("a fleet");
    for _ in 0..4 {
        rate = requests_of_people(10.0, plan.steady.answer_s, 30.0).expect("people");
        plan = setup.smallest(&load(rate), &Targets::default(), 0).expect("a fleet");
    }
    assert_eq!(plan.n_devices, 1);
    let mut lines = vec![("requests", format!("{rate:.2}/s"))];
    lines.extend(example(&plan));
    check("ten people", &rows(["Llama 3.1 8B in FP8 on an L4, 10 people who pause for 30 s", ""], &lines));
}

#[test]
fn a_company() {
    let crowd = Crowd { users: 5000.0, requests_per_day: 100.0, peak_factor: 4.0 };
    let peak = crowd.peak_requests_per_s().expect("sizes");
    let targets = Targets { first_token_s: Some(1.0), gap_s: Some(0.1) };
    let plan = setup("h100", models::llama_70b(), 4).smallest(&load(peak), &targets, 1).expect("a fleet");
    let mut lines = vec![("at the busiest time", format!("{peak:.0} requests/s"))];
    lines.extend(example(&plan));
    check(
        "a company",
        &rows(["5,000 people, 100 requests a day, Llama 3.1 70B on H100, one replica spare", ""], &lines),
    );
}

/// The machine that the page describes is one.
#[test]
fn the_example_of_a_machine_is_one() {
    let text = std::fs::read_to_string(page()).expect("the page");
    let lines = text.lines().skip_while(|line| !line.starts_with("    [[machine]]"));
    let example: Vec<&str> = lines.take_while(|line| line.starts_with("    ")).map(str::trim).collect();
    let catalogue = Catalogue::parse("the page", &example.join("\n")).expect("a description");
    assert_eq!(catalogue.machines[0].name, "box");
    assert_eq!(catalogue.machines[0].figures().count(), 7);
}
