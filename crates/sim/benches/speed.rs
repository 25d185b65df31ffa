//! Speed of the simulator: `cargo bench -p throng-sim --bench speed`, with words of the names below after
//! `--` to choose some. Each run is on one core; beside the time it prints the time on a processor, which is
//! shorter where others use the core too. Requests have 500 prompt tokens and 300 of an answer in the mean;
//! the replicas' prefix caches, the router, health and delivery are simulated too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_core::scheduling::executor::ExecutorCapacity;
use throng_core::time::Nanos;
use throng_core::timeline::latency::Objective;
use throng_sim::cost::LinearCostModel;
use throng_sim::distribution::Distribution;
use throng_sim::fleet::{FleetConfig, ReplicaConfig};
use throng_sim::report::{Report, ReportBuilder};
use throng_sim::simulation::Simulation;
use throng_sim::workload::{ArrivalProcess, OpenLoop, RequestShape};

/// Mean tokens of prompts and outputs.
const LENGTHS: (f64, f64) = (500.0, 300.0);

const HOUR_S: u64 = 3_600;
const DAY_S: u64 = 86_400;

/// A measured size.
struct Size {
    name: &'static str,
    process: ArrivalProcess,
    n_replicas: usize,
    seconds: u64,
    /// Seeds of the runs, more than one where the difference between them is the error of a sample.
    seeds: &'static [u64],
    /// Time that all runs may take on one core.
    aim: Option<Duration>,
}

/// The sizes. 700 million users who ask twice a day are 16,200 requests a second, 3 for each of 5,400
/// replicas, of which two are simulated with their part of the load. Of 100 replicas,
/// `throng plan --simulate` simulates eight.
const SIZES: [Size; 4] = [
    Size {
        name: "an hour of 10 requests/s on 1 replica",
        process: ArrivalProcess::Poisson { rate: 10.0 },
        n_replicas: 1,
        seconds: HOUR_S,
        seeds: &[3],
        aim: Some(Duration::from_secs(5)),
    },
    Size {
        name: "a day of 700 M weekly users, 2 of 5,400 replicas, twice",
        process: ArrivalProcess::Daily { mean_rate: 6.0, peak_factor: 3.0, day_s: DAY_S as f64 },
        n_replicas: 2,
        seconds: DAY_S,
        seeds: &[3, 4],
        aim: Some(Duration::from_secs(300)),
    },
    Size {
        name: "an hour of 1,000 requests/s, a sample of 8 of 100 replicas",
        process: ArrivalProcess::Poisson { rate: 80.0 },
        n_replicas: 8,
        seconds: HOUR_S,
        seeds: &[3],
        aim: None,
    },
    Size {
        name: "an hour of 1,000 requests/s on 100 replicas",
        process: ArrivalProcess::Poisson { rate: 1_000.0 },
        n_replicas: 100,
        seconds: HOUR_S,
        seeds: &[3],
        aim: Some(Duration::from_secs(60)),
    },
];

fn simulate(size: &Size, seed: u64) -> Report {
    let capacity = ExecutorCapacity {
        n_blocks: 40_000,
        max_batch_tokens: 2048,
        max_batch_sequences: 256,
        max_sequence_tokens: 32_768,
        vocabulary_size: 32_000,
        n_state_slots: 0,
        max_steps_in_flight: 2,
        takes_whole_prompts: false,
        takes_media: false,
        keeps_media_whole: false,
        n_stages: 1,
    };
    let cost = LinearCostModel {
        fixed: Duration::from_millis(12),
        per_token: Duration::from_micros(30),
        per_sequence: Duration::from_micros(20),
        per_context_token_ns: 20.0,
    };
    let fleet = FleetConfig::uniform(ReplicaConfig::new(capacity, Arc::new(cost)), size.n_replicas);
    let [prompt, output] = [LENGTHS.0, LENGTHS.1].map(|mean| Distribution::Exponential { mean });
    let shape = RequestShape::new(prompt, output);
    let duration = Nanos::from_ms(size.seconds * 1_000);
    let workload = OpenLoop::new(size.process, shape, duration, seed).expect("valid");
    let mut report = ReportBuilder::new(Objective::default(), Nanos(0));
    let simulation = Simulation::new(fleet, Box::new(workload), 1).expect("valid");
    let totals = simulation.run(&mut report).expect("it runs");
    report.finish(totals)
}

/// A digest of a report, by which two versions of the code can be compared.
fn digest(report: &Report) -> u64 {
    let json = serde_json::to_string(report).expect("plain numbers");
    let mix = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    json.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// Time that this thread has spent on a processor, where the system tells it.
fn processor_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?))
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    for size in SIZES.iter().filter(|size| words.iter().all(|word| size.name.contains(word.as_str()))) {
        let (started, before) = (Instant::now(), processor_time());
        let reports: Vec<Report> = size.seeds.iter().map(|seed| simulate(size, *seed)).collect();
        let took = started.elapsed();
        let computed = processor_time().zip(before).map_or(took, |(after, before)| after - before);
        let n_tokens: u64 = reports.iter().map(|report| report.totals.output_tokens).sum();
        let aim = size.aim.map_or(String::new(), |aim| format!(" of {} s", aim.as_secs()));
        println!(
            "{}: {:.1} s{aim}, {:.1} s on a processor, {:.0} ns a token",
            size.name,
            took.as_secs_f64(),
            computed.as_secs_f64(),
            computed.as_nanos() as f64 / n_tokens as f64
        );
        for report in &reports {
            println!(
                "    {} requests, {} steps, {} tokens; {:.0} % busy; first token p99 {:.0} ms, \
                 gap p50 {:.1} ms; report {:016x}",
                report.n_requests,
                report.totals.n_steps,
                report.totals.output_tokens,
                100.0 * report.utilization(size.n_replicas),
                report.first_token.p99_ms,
                report.gap.p50_ms,
                digest(report),
            );
        }
    }
}
