//! Fleets in closed form: what must hold of any of them, and what is refused.

use std::sync::Arc;

use throng_core::fleet::routing::Policy;
use throng_plan::cost::Calibration;
use throng_plan::cost::calibration::StepSample;
use throng_plan::fleet::{Layout, Setup};
use throng_plan::load::Length;
use throng_plan::machine::Figure;
use throng_plan::model_shape::WeightType;
use throng_plan::replica::{Batching, Role, Speculation, Targets};
use throng_plan::search::{Goal, Question};
use throng_plan::simulate::{Settings, simulate};
use throng_plan::{Catalogue, Load, ModelShape, Parallelism};
use throng_sim::cost::StepShape;

use crate::models;

/// A model on devices of a machine.
pub fn setup(machine: &str, model: ModelShape, tensor: u32) -> Setup {
    Setup {
        machine: Catalogue::built_in().find(machine).expect("in the box").clone(),
        model,
        parallelism: Parallelism::tensor(tensor),
        batching: Batching { max_sequences: 256, max_batch_tokens: 2048, speculation: None },
        layout: Layout::Together,
        memory_share: 0.9,
        step_overhead_s: 0.0,
        efficiency: None,
        measured: None,
    }
}

/// Requests of 500 and 300 tokens.
pub fn load(rate: f64) -> Load {
    let length = |mean| Length { mean, variation: 0.5, most: None };
    Load {
        requests_per_s: rate,
        prompt: length(500.0),
        output: length(300.0),
        cached_share: 0.0,
        host_cached_share: 0.0,
    }
}

fn targets() -> Targets {
    Targets { first_token_s: Some(1.0), gap_s: Some(0.1) }
}

#[test]
fn times_and_batches_grow_with_the_load() {
    let replica = setup("h100", models::llama_70b(), 4).replica(&load(1.0), Role::Both).expect("fits");
    let steady = |rate| replica.steady(&load(rate)).expect("below the highest rate");
    let (few, many) = (steady(1.0), steady(10.0));
    assert!(many.step_s > few.step_s && many.n_running > 9.0 * few.n_running);
    assert!(many.first_token.p99 > few.first_token.p99 && few.first_token.p99 > few.first_token.mean);
    assert!(many.gap.p99 >= many.gap.mean && many.cache_share > few.cache_share);
    // As many run as arrive while one is answered (Little).
    assert!((many.n_running - 10.0 * 300.0 * many.step_s).abs() < 1e-3 * many.n_running);
}

#[test]
fn the_highest_rate_meets_the_targets_and_a_little_more_does_not() {
    let replica = setup("h100", models::llama_70b(), 4).replica(&load(1.0), Role::Both).expect("fits");
    let highest = replica.highest_rate(&load(1.0), &targets()).expect("a rate");
    let meets = |rate| replica.steady(&load(rate)).is_ok_and(|steady| steady.meets(&targets()));
    assert!(meets(0.99 * highest) && !meets(1.01 * highest), "{highest}");
    assert!(replica.highest_rate(&load(1.0), &Targets::default()).expect("a rate") >= highest);
}

#[test]
fn a_fleet_answers_its_load_and_goes_on_without_its_spare_replicas() {
    let setup = setup("h100", models::llama_70b(), 4);
    let plan = setup.smallest(&load(100.0), &targets(), 2).expect("a fleet");
    assert!(plan.utilization <= 1.0 && plan.highest_rate >= 100.0);
    assert_eq!(plan.n_devices, 4 * (plan.n_replicas + 2));
    let fewer = setup.at_highest(&load(1.0), &targets(), plan.n_replicas - 1).expect("a fleet");
    assert!(fewer.highest_rate < 100.0, "one replica fewer is not enough");
}

#[test]
fn prompts_apart_cost_replicas_and_shorten_gaps() {
    let together = setup("h100", models::llama_70b(), 4);
    let apart = Setup { layout: Layout::Apart, ..together.clone() };
    let [together, apart] =
        [together, apart].map(|setup| setup.smallest(&load(100.0), &targets(), 0).expect("a fleet"));
    assert!(apart.n_prefill > 0 && together.n_prefill == 0);
    assert!(apart.steady.gap.p99 < together.steady.gap.p99, "no prompt lengthens a step");
}

#[test]
fn caches_types_and_drafts_have_their_effect() {
    let rate =
        |setup: &Setup, load: &Load| setup.highest_rates(load, &Targets::default()).expect("fits").answers;
    let plain = setup("h100", models::llama_70b(), 4);
    let before = rate(&plain, &load(1.0));
    assert!(
        rate(&plain, &Load { cached_share: 0.8, ..load(1.0) }) > 1.2 * before,
        "cached prompts are not computed"
    );
    let mut small = plain.clone();
    small.model.weights = WeightType::named("fp8").expect("a type");
    assert!(rate(&small, &load(1.0)) > before, "smaller weights are read faster");
    let mut drafting = plain.clone();
    drafting.batching.speculation = Some(Speculation { n_drafts: 4, acceptance: 0.8 });
    let alone = |setup: &Setup| {
        setup.replica(&load(1.0), Role::Both).and_then(|r| r.steady(&load(1e-3))).expect("fits")
    };
    assert!(alone(&drafting).gap.mean < 0.5 * alone(&plain).gap.mean, "right drafts come with their step");
    let tier = Load { host_cached_share: 0.8, ..load(1.0) };
    assert!(rate(&plain, &tier) > 1.2 * before, "prompts from host memory are not computed");
    let from_host = plain.replica(&tier, Role::Both).and_then(|r| r.steady(&tier)).expect("fits");
    let cached = Load { cached_share: 0.8, ..load(1.0) };
    let from_device = plain.replica(&cached, Role::Both).and_then(|r| r.steady(&cached)).expect("fits");
    assert!(from_host.first_token.mean > from_device.first_token.mean, "but they have to come");
}

/// A fleet whose prompts are computed apart answers no more than the replicas for prompts take in.
#[test]
fn the_highest_rate_of_a_fleet_is_that_of_its_narrower_part() {
    let apart = Setup { layout: Layout::Apart, ..setup("h100", models::llama_70b(), 4) };
    let each = apart.highest_rates(&load(1.0), &targets()).expect("rates");
    let prompts = each.prompts.expect("replicas of their own");
    let plan = apart.smallest(&load(100.0), &targets(), 0).expect("a fleet");
    let narrower = (plan.n_prefill as f64 * prompts).min(plan.n_replicas as f64 * each.answers);
    assert_eq!(plan.highest_rate, narrower);
    assert!((plan.utilization - 100.0 / narrower).abs() < 1e-9 && plan.utilization <= 1.0);
    let most = apart.steady(&load(plan.highest_rate), plan.n_replicas, plan.n_prefill).expect("its highest");
    assert!(most.first_token.p99 <= 1.001 && most.gap.p99 <= 0.1001, "{most:?}");
    assert!(apart.steady(&load(10.0 * narrower), plan.n_replicas, plan.n_prefill).is_err());
}

/// With few slots, requests wait for one, and the mean says so.
#[test]
fn the_mean_of_first_tokens_has_the_wait_for_a_slot() {
    let mut few = setup("h100", models::llama_70b(), 4);
    few.batching.max_sequences = 8;
    let replica = few.replica(&load(1.0), Role::Both).expect("fits");
    let most = replica.highest_rate(&load(1.0), &Targets::default()).expect("a rate");
    let at = |share: f64| replica.steady(&load(share * most)).expect("below the highest");
    assert!(at(0.97).first_token.mean > 10.0 * at(0.3).first_token.mean, "{:?}", at(0.97).first_token);
    assert!(at(0.97).first_token.mean < at(0.97).first_token.p99);
}

/// Layers with a window hold the last tokens of each sequence, so that more long sequences fit.
#[test]
fn windows_leave_room_for_more_tokens() {
    let mut windowed = models::llama_8b();
    windowed.layers[0].window = Some(512);
    let memory = |model| setup("h100", model, 1).replica(&load(1.0), Role::Both).expect("fits").memory;
    let (full, short) = (memory(models::llama_8b()), memory(windowed.clone()));
    let n_tokens = |n| short.n_tokens(&windowed, n);
    assert!((n_tokens(5120) / full.n_tokens(&models::llama_8b(), 5120) - 10.0).abs() < 0.01);
    assert!((n_tokens(256) / full.n_tokens(&models::llama_8b(), 256) - 1.0).abs() < 0.01);
}

#[test]
fn experts_are_read_as_far_as_tokens_touch_them() {
    let experts = models::mixtral().layers[0].experts.clone().expect("experts");
    assert_eq!(experts.n_touched(1.0), 2.0);
    assert!((experts.n_touched(64.0) - 8.0).abs() < 1e-6);
    let setup = |expert| Setup {
        parallelism: Parallelism { expert, ..Parallelism::tensor(1) },
        ..setup("h200", models::mixtral(), 1)
    };
    let fits = |expert| setup(expert).replica(&load(1.0), Role::Both).expect("fits").memory.weight_bytes;
    assert!(fits(4) < 0.4 * fits(1), "experts are divided");
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let error =
        |setup: &Setup, load: &Load| setup.smallest(load, &targets(), 0).expect_err("refused").to_string();
    let alone = setup("h100", models::llama_70b(), 1);
    assert_eq!(
        error(&alone, &load(1.0)),
        "Llama-3.1-70B needs 132.1 GiB of each h100, of which 72.0 GiB may be used"
    );
    let good = setup("h100", models::llama_70b(), 4);
    assert_eq!(error(&good, &load(f64::NAN)), "requests a second is NaN: expected a finite number above 0");
    assert_eq!(error(&good, &load(-1.0)), "requests a second is -1: expected a finite number above 0");
    let cached = Load { cached_share: 1.5, ..load(1.0) };
    assert_eq!(error(&good, &cached), "the cached share is 1.5: expected a number from 0 to 1");
    let long = Load { prompt: Length::constant(200_000.0), ..load(1.0) };
    assert!(error(&good, &long).starts_with("the tokens of a long request, prompt and answer is 2"));
    let mut wide = good.clone();
    wide.batching.max_batch_tokens = 8192;
    assert_eq!(
        error(&wide, &load(1.0)),
        "tokens of a step is 8192, outside the calibrated range of h100: 1 to 4096"
    );
    let sixteen = setup("h100", models::llama_70b(), 16);
    assert!(error(&sixteen, &load(1.0)).contains("expected at most the devices that fast links join"));
    let t4 = setup("t4", models::llama_8b(), 2);
    assert!(error(&t4, &load(1.0)).starts_with("the machine t4 has no link_bytes_per_s"));
    let epyc = setup("epyc-9654", models::llama_8b(), 1);
    assert!(error(&epyc, &load(1.0)).starts_with("the machine epyc-9654 has no memory_bytes"));
    let mut full = good.clone();
    full.memory_share = 2.0;
    assert!(error(&full, &load(1.0)).starts_with("the share of memory that may be used is 2"));
    let strict = Targets { gap_s: Some(1e-3), ..Targets::default() };
    let unreachable = good.smallest(&load(1.0), &strict, 0).expect_err("too strict").to_string();
    assert!(
        unreachable.starts_with("h100 TP 4 cannot meet the gap: without other requests it is"),
        "{unreachable}"
    );
    let none = good.at_highest(&load(1.0), &targets(), 0).expect_err("no replicas").to_string();
    assert_eq!(none, "replicas is 0: expected at least one");
}

/// A calibration refuses steps whose attention sees more than was measured, whichever replica they are of.
#[test]
fn attention_beyond_the_calibrated_range_is_refused() {
    let steps: Vec<StepSample> = (1..=120_u32)
        .map(|n| {
            let shape = StepShape {
                n_sequences: 1 + n % 8,
                n_tokens: 2 * n,
                n_logits: 1 + n % 8,
                n_attention_pairs: u64::from(n) * 100,
                ..StepShape::default()
            };
            StepSample { shape, seconds: 0.02 + 1e-4 * f64::from(n) }
        })
        .collect();
    let mut measured = setup("h100", models::llama_8b(), 1);
    measured.measured = Some(Arc::new(Calibration::fit("paper", &steps).expect("enough steps")));
    (measured.batching.max_sequences, measured.batching.max_batch_tokens) = (8, 200);
    let length = |mean| Length { mean, variation: 0.1, most: None };
    let short = Load { prompt: length(40.0), output: length(20.0), ..load(1.0) };
    let plan = measured.smallest(&short, &Targets::default(), 0).expect("within what was measured");
    assert!(plan.error.is_some());
    let long = Load { prompt: length(4000.0), ..short };
    let error = measured.smallest(&long, &Targets::default(), 0).expect_err("beyond it").to_string();
    assert!(error.starts_with("pairs of a token and a position is"), "{error}");
}

#[test]
fn a_search_orders_fleets_and_keeps_the_reasons_of_others() {
    let mut setups: Vec<Setup> =
        ["h100", "l4", "a100"].map(|machine| setup(machine, models::llama_8b(), 1)).into();
    setups[0].machine.price_per_hour = Some(Figure { value: 2.5, source: None, read: None });
    setups[2].machine.price_per_hour = Some(Figure { value: 1.0, source: None, read: None });
    let question =
        Question { load: load(50.0), targets: targets(), n_spare: 0, n_replicas: None, goal: Goal::Cheapest };
    let answers = question.answer(&setups).expect("a question");
    let prices: Vec<f64> = answers.plans.iter().filter_map(|(_, plan)| plan.price_per_hour).collect();
    assert!(prices.len() == 2 && prices[0] <= prices[1], "{prices:?}");
    assert_eq!(setups[answers.refused[0].0].name(), "l4");
    assert!(answers.refused[0].1.to_string().contains("price_per_hour"), "{:?}", answers.refused);
    let smallest = Question { goal: Goal::Smallest, ..question }.answer(&setups).expect("a question");
    assert_eq!(smallest.plans[0].1.machine, "h100");
}

/// The simulator, with the product's scheduler and router, finds times close to the closed forms at half
/// load.
#[test]
fn the_simulation_agrees_with_the_closed_forms_at_half_load() {
    let setup = setup("h100", models::llama_8b(), 1);
    let load = load(40.0);
    let replica = setup.replica(&load, Role::Both).expect("fits");
    let settings = Settings {
        seconds: 30.0,
        n_runs: 2,
        seed: 5,
        policy: Policy::default(),
        n_lost: 0,
        inter_token_target_ms: None,
        is_direct: false,
        n_threads: 2,
    };
    let simulated = simulate(&replica, 2, &load, &settings).expect("a fleet");
    let steady = replica.steady(&load.at(20.0)).expect("half of the load");
    let (gap, first) = (simulated.report.gap.mean_ms * 1e-3, simulated.report.first_token.mean_ms * 1e-3);
    println!("simulated gap {gap} first {first}, closed {} {}", steady.gap.mean, steady.first_token.mean);
    assert!((gap / steady.gap.mean - 1.0).abs() < 0.15, "{gap} {}", steady.gap.mean);
    assert!((first / steady.first_token.mean - 1.0).abs() < 0.5, "{first} {}", steady.first_token.mean);
    assert!(simulated.timeline.len() > 100 && simulated.report.n_requests > 1000);
    let again =
        simulate(&replica, 2, &load, &Settings { n_threads: 1, ..settings.clone() }).expect("a fleet");
    assert_eq!(again.report, simulated.report, "the same whatever the threads");
    let lost = simulate(&replica, 2, &load, &Settings { n_lost: 1, ..settings.clone() }).expect("a fleet");
    assert!(lost.report.first_token.p99_ms > simulated.report.first_token.p99_ms, "one replica is left");
    assert!(simulate(&replica, 2, &load, &Settings { n_lost: 2, ..settings.clone() }).is_err());
    let endless = Settings { seconds: f64::INFINITY, ..settings };
    assert!(
        simulate(&replica, 2, &load, &endless)
            .expect_err("endless")
            .to_string()
            .contains("simulated seconds")
    );
}
