//! Tests of the autoscaler over a simulated fleet under random load, with replicas that start late, and
//! observations that are missing, absurd or late. A failing seed is printed; planted bugs are found.

use fastrand::Rng;

use throng_core::fleet::autoscale::*;
use throng_core::time::{Nanos, Timestamp};

const S: u64 = 1_000_000_000;
/// Number of sequences that a simulated replica ends in a second.
const RATE: u64 = 8;
const SLOTS: u64 = 16;

/// Bugs that the test must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// A missing observation counts as one without load.
    BlindIsEmpty,
    /// The number follows each demand at once.
    NoCooldown,
    /// Requests that found no replica do not count.
    RefusedIsIdle,
    /// The bounds on replicas are ignored.
    Unbounded,
}

const BUGS: [Bug; 4] = [Bug::BlindIsEmpty, Bug::NoCooldown, Bug::RefusedIsIdle, Bug::Unbounded];

fn config(rng: &mut Rng, bug: Option<Bug>) -> (AutoscaleConfig, AutoscaleConfig) {
    let config = AutoscaleConfig {
        min_replicas: rng.u32(0..2),
        max_replicas: rng.u32(2..12),
        target_sequences: 12,
        up_cooldown: Nanos(rng.u64(5..30) * S),
        down_cooldown: Nanos(rng.u64(30..120) * S),
        idle: Nanos(rng.u64(60..300) * S),
        ..AutoscaleConfig::default()
    };
    let mut used = config;
    match bug {
        Some(Bug::NoCooldown) => (used.up_cooldown, used.down_cooldown) = (Nanos(0), Nanos(0)),
        Some(Bug::Unbounded) => used.max_replicas = 1000,
        _ => {}
    }
    (config, used)
}

/// Earlier decisions, to compare the next one with.
#[derive(Debug, Default)]
struct Promises {
    last: Option<u32>,
    changed_at: u64,
    last_active: u64,
    refused_at: Option<u64>,
}

impl Promises {
    /// Error of a decision at a time in seconds, if any.
    fn check(
        &mut self,
        config: &AutoscaleConfig,
        desired: u32,
        at: u64,
        is_blind: bool,
    ) -> Result<(), String> {
        if !(config.min_replicas..=config.max_replicas).contains(&desired) {
            return Err(format!("{desired} replicas"));
        }
        let last = self.last.replace(desired);
        if last.is_some_and(|last| last != desired) {
            let cooldown = if last < Some(desired) { config.up_cooldown } else { config.down_cooldown };
            if is_blind {
                return Err(format!("a change to {desired} without an observation"));
            }
            let since = at - std::mem::replace(&mut self.changed_at, at);
            if since < at && last != Some(0) && since * S < cooldown.0 {
                return Err(format!("changes within {since} s at {at} s"));
            }
        }
        if desired == 0 && last != Some(0) && (at - self.last_active) * S < config.idle.0 {
            return Err(format!("none at {at} s, although there were requests at {} s", self.last_active));
        }
        if desired > 0 {
            self.refused_at = None;
        }
        // Who finds no replica gets one soon, whatever the cool-downs are.
        if self.refused_at.is_some_and(|refused| at > refused + 10) {
            return Err(format!("none at {at} s, although requests were refused"));
        }
        Ok(())
    }
}

/// Simulates one fleet for an hour and returns the first fault, if any.
fn run(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let (config, used) = config(&mut rng, bug);
    let mut autoscaler = Autoscaler::new(used);
    let (mut n_replicas, mut n_sequences, mut n_unserved) = (config.min_replicas, 0u64, 0u64);
    // When each replica that is asked for comes.
    let mut starting: Vec<u64> = Vec::new();
    let mut promises = Promises::default();
    let (mut rate, mut at) = (0, 0);
    while at < 3600 {
        at += rng.u64(1..6);
        if rng.u32(..40) == 0 {
            rate = if rng.bool() { 0 } else { rng.u64(..RATE * 14) };
        }
        let (arriving, done) = (rate * 3, u64::from(n_replicas) * RATE * 3);
        if n_replicas == 0 {
            n_unserved += arriving;
        } else {
            n_sequences = (n_sequences + arriving).saturating_sub(done);
        }
        if n_sequences > 0 || (n_replicas == 0 && arriving > 0) {
            promises.last_active = at;
        }
        let n_running = n_sequences.min(u64::from(n_replicas) * SLOTS);
        let seen = Observation {
            n_replicas,
            n_running,
            n_waiting: n_sequences - n_running,
            kv_use: if rng.u32(..30) == 0 {
                f64::NAN
            } else {
                n_running as f64 / (n_replicas.max(1) as f64 * SLOTS as f64)
            },
            predicted_ttft: Nanos(n_sequences * S / (u64::from(n_replicas).max(1) * RATE)),
            n_unserved: if bug == Some(Bug::RefusedIsIdle) { 0 } else { n_unserved },
        };
        let is_blind = rng.u32(..10) == 0 || seen.kv_use.is_nan();
        let told = if is_blind { None } else { Some(seen) };
        let told = if bug == Some(Bug::BlindIsEmpty) { Some(told.unwrap_or_default()) } else { told };
        let Some(desired) = autoscaler.decide(told, Timestamp::from_ns(at * S)) else { continue };
        if n_replicas == 0 && arriving > 0 && !is_blind {
            promises.refused_at.get_or_insert(at);
        }
        promises.check(&config, desired, at, is_blind)?;
        starting.retain(|&comes| {
            comes > at || {
                n_replicas += 1;
                false
            }
        });
        n_replicas = n_replicas.min(desired);
        starting.truncate((desired - n_replicas) as usize);
        while n_replicas + (starting.len() as u32) < desired {
            starting.push(at + rng.u64(5..60));
        }
    }
    Ok(())
}

#[test]
fn random_loads_keep_every_promise() {
    let first = std::env::var("THRONG_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seeds = first.map_or(0..2_000, |seed: u64| seed..seed + 1);
    for seed in seeds {
        if let Err(fault) = run(seed, None) {
            panic!("THRONG_SEED={seed}: {fault}");
        }
    }
}

#[test]
fn planted_bugs_are_found() {
    for bug in BUGS {
        assert!((0..500).any(|seed| run(seed, Some(bug)).is_err()), "{bug:?} was not found");
    }
}

#[test]
fn a_steady_load_is_met_and_given_back() {
    let mut autoscaler = Autoscaler::new(AutoscaleConfig { min_replicas: 0, ..AutoscaleConfig::default() });
    let (mut n_replicas, mut at) = (1u32, 0);
    // 320 sequences are what ten replicas should have.
    let mut settle = |n_sequences: u64, seconds: u64| {
        for _ in 0..seconds / 5 {
            at += 5;
            let seen =
                Observation { n_replicas, n_running: n_sequences, kv_use: 0.1, ..Observation::default() };
            let seen = if n_sequences == 0 { Observation { kv_use: 0.0, ..seen } } else { seen };
            n_replicas = autoscaler.decide(Some(seen), Timestamp::from_ns(at * S)).expect("seen");
        }
        n_replicas
    };
    assert_eq!(settle(320, 120), 10);
    assert_eq!(settle(320, 600), 10);
    assert_eq!(settle(64, 1200), 2);
    assert_eq!(settle(0, 600), 1);
    assert_eq!(settle(0, 1200), 0);
}
