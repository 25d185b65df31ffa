//! Runs whose engines give decoding sequences shares without content are the runs of engines that make whole
//! batches: the same events at the same times, and the same report, byte for byte. A failing world prints the
//! line that repeats it.

use fastrand::Rng;
use throng_core::request::TokenId;
use throng_core::time::{Nanos, Timestamp};
use throng_core::timeline::latency::Objective;
use throng_sim::SimError;
use throng_sim::fleet::FleetConfig;
use throng_sim::outcome::{Observer, ReplicaSample, RequestOutcome};
use throng_sim::report::ReportBuilder;
use throng_sim::simulation::Simulation;
use throng_sim::workload::{EndedRequest, TimedRequest, Workload};

use crate::composed::{faults, fleet, workload};

/// Number of random worlds.
const N_WORLDS: u64 = 96;

/// A workload whose requests get priorities, and bounds on their output that are beyond or below its end.
#[derive(Debug)]
struct Varied {
    inner: Box<dyn Workload>,
    rng: Rng,
}

impl Varied {
    fn vary(&mut self, mut timed: TimedRequest) -> TimedRequest {
        let request = &mut timed.request;
        request.priority = self.rng.i32(-2..3);
        match self.rng.u8(..4) {
            // It ends with the model's token, before its bound.
            0 => request.max_tokens += self.rng.u32(1..50),
            // Only its bound ends it.
            1 => request.stops = false,
            _ => {}
        }
        timed
    }
}

impl Workload for Varied {
    fn next_request(&mut self) -> Result<Option<TimedRequest>, SimError> {
        Ok(self.inner.next_request()?.map(|timed| self.vary(timed)))
    }

    fn follow_up(&mut self, ended: &EndedRequest) -> Option<TimedRequest> {
        let timed = self.inner.follow_up(ended)?;
        Some(self.vary(timed))
    }
}

/// All that an observer sees, as text.
#[derive(Default)]
struct Transcript {
    lines: Vec<String>,
    report: ReportBuilder,
    n_tokens: u64,
}

impl Observer for Transcript {
    fn sent(&mut self, number: u64, timed: &TimedRequest) {
        self.lines.push(format!("{number} is sent at {:?}", timed.at));
    }

    fn retried(&mut self, number: u64) {
        self.lines.push(format!("{number} is retried"));
    }

    fn token(&mut self, number: u64, index: u32, token: TokenId, at: Timestamp) {
        self.n_tokens += 1;
        self.lines.push(format!("{number} gets {index}: {token} at {at:?}"));
    }

    fn gap(&mut self, gap: Nanos) {
        self.report.gap(gap);
    }

    fn admitted(&mut self, number: u64, tenant: u32, at: Timestamp) {
        self.lines.push(format!("{number} of {tenant} is admitted at {at:?}"));
    }

    fn released(&mut self, number: u64, tenant: u32, at: Timestamp) {
        self.lines.push(format!("{number} of {tenant} is released at {at:?}"));
    }

    fn ended(&mut self, outcome: &RequestOutcome) {
        self.lines.push(format!("{outcome:?}"));
        self.report.ended(outcome);
    }

    fn sampled(&mut self, sample: &ReplicaSample) {
        self.report.sampled(sample);
    }
}

/// The transcript and the report of a world, and its numbers of tokens and preemptions.
fn run(seed: u64, has_whole_batches: bool) -> (Vec<String>, String, u64, u64) {
    let mut rng = Rng::with_seed(seed);
    let sample_interval = Some(Nanos::from_ms(500));
    let fleet = FleetConfig { sample_interval, ..fleet(&mut rng) };
    let workload = Varied { inner: workload(&mut rng), rng: rng.fork() };
    let faults = faults(&mut rng, fleet.replicas.len());
    let simulation = Simulation::new(fleet, Box::new(workload), rng.u64(..)).expect("valid");
    let end = Timestamp::default() + Nanos::from_ms(3_600_000);
    let simulation = simulation.with_faults(faults).expect("valid").until(end);
    let simulation = if has_whole_batches { simulation.with_whole_batches() } else { simulation };
    let report = ReportBuilder::new(Objective::default(), Nanos(0));
    let mut transcript = Transcript { report, ..Transcript::default() };
    let totals = simulation.run_checked(&mut transcript).expect("it runs");
    let n_preemptions = totals.preemptions;
    let report = serde_json::to_string(&transcript.report.finish(totals)).expect("plain numbers");
    (transcript.lines, report, transcript.n_tokens, n_preemptions)
}

#[test]
fn shares_without_content_change_no_event_and_no_byte_of_the_report() {
    let only = std::env::var("THRONG_WORLD").ok().map(|seed| seed.parse::<u64>().expect("a number"));
    let (mut n_tokens, mut n_preemptions) = (0, 0);
    for seed in (0..N_WORLDS).filter(|seed| only.is_none_or(|only| only == *seed)) {
        let rerun = format!("rerun: THRONG_WORLD={seed} cargo test -p throng-sim whole_batches::");
        let (plain, plain_report, n, n_preempted) = run(seed, false);
        let (whole, whole_report, ..) = run(seed, true);
        let different = plain.iter().zip(&whole).find(|(plain, whole)| plain != whole);
        assert!(different.is_none() && plain.len() == whole.len(), "{different:?}\n{rerun}");
        assert_eq!(plain_report, whole_report, "{rerun}");
        n_tokens += n;
        n_preemptions += n_preempted;
    }
    println!("{n_tokens} tokens, {n_preemptions} preemptions");
    assert!(only.is_some() || (n_tokens > 100_000 && n_preemptions > 1_000), "too little happened");
}
