//! Computes how many replicas a model needs from its waiting and running sequences, the use of its KV cache
//! and the predicted time to first token. Does not start replicas; has no clock.
//!
//! The formula is that of Kubernetes' HorizontalPodAutoscaler: the present number times the worst ratio of a
//! measure to its target, with a tolerance; at most doubling at a time, shrinking to the highest number that
//! was desired within a window.

use std::collections::VecDeque;

use crate::time::{Nanos, Timestamp};

/// Largest distance of the ratio from 1 that does not change the number of replicas.
const TOLERANCE: f64 = 0.1;

/// Bounds and targets of the autoscaler.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AutoscaleConfig {
    /// Minimum number of replicas; with 0, a model without requests may have none.
    pub min_replicas: u32,
    /// Maximum number of replicas.
    pub max_replicas: u32,
    /// Number of running and waiting sequences that a replica should have.
    pub target_sequences: u32,
    /// The part of the KV cache that should be in use, above 0 and at most 1.
    pub target_kv_use: f64,
    /// The time to first token that a request should expect.
    pub target_ttft: Nanos,
    /// Time between a change and the next one to more replicas.
    pub up_cooldown: Nanos,
    /// Time between a change and the next one to fewer replicas, and the window whose largest demand counts.
    pub down_cooldown: Nanos,
    /// A model without requests for this long may be scaled to zero, where `min_replicas` is 0.
    pub idle: Nanos,
}

impl Default for AutoscaleConfig {
    fn default() -> Self {
        Self {
            min_replicas: 1,
            max_replicas: 16,
            target_sequences: 32,
            target_kv_use: 0.8,
            target_ttft: Nanos::from_ms(2_000),
            up_cooldown: Nanos::from_ms(15_000),
            down_cooldown: Nanos::from_ms(300_000),
            idle: Nanos::from_ms(900_000),
        }
    }
}

/// Observation of a model's replicas at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Observation {
    /// Number of replicas that answer.
    pub n_replicas: u32,
    /// Number of sequences that run on them.
    pub n_running: u64,
    /// Number of waiting sequences.
    pub n_waiting: u64,
    /// The part of their KV caches that is in use, 0 to 1.
    pub kv_use: f64,
    /// Time to first token of one more request at the best replica; zero if unknown.
    pub predicted_ttft: Nanos,
    /// Requests that found no replica, since the gateway started.
    pub n_unserved: u64,
}

/// Decides how many replicas a model should have.
#[derive(Debug, Clone)]
pub struct Autoscaler {
    config: AutoscaleConfig,
    /// `None` before the first observation.
    state: Option<State>,
}

#[derive(Debug, Clone)]
struct State {
    desired: u32,
    last_change: Timestamp,
    last_active: Timestamp,
    n_unserved: u64,
    /// Wishes within the window, each lower than the one before it: a wish removes earlier ones that are
    /// not higher. At most one for each number of replicas.
    wishes: VecDeque<(Timestamp, u32)>,
}

impl Autoscaler {
    /// Creates an autoscaler that has decided nothing yet.
    ///
    /// # Panics
    /// When a bound or target is out of range.
    pub fn new(config: AutoscaleConfig) -> Self {
        assert!(
            config.min_replicas <= config.max_replicas && config.max_replicas > 0,
            "no number is allowed"
        );
        assert!(config.target_sequences > 0 && config.target_ttft.0 > 0, "a target is zero");
        assert!(config.target_kv_use > 0.0 && config.target_kv_use <= 1.0, "the target is no part");
        Self { config, state: None }
    }

    /// The number of replicas to have from now on; `None` before the first observation. With `None` in place
    /// of a valid observation, the last decision holds.
    pub fn decide(&mut self, seen: Option<Observation>, now: Timestamp) -> Option<u32> {
        let Some(seen) = seen.filter(|seen| (0.0..=1.0).contains(&seen.kv_use)) else {
            return self.desired();
        };
        let config = self.config;
        let state = self.state.get_or_insert_with(|| State {
            desired: seen.n_replicas.clamp(config.min_replicas, config.max_replicas),
            last_change: now,
            last_active: now,
            n_unserved: seen.n_unserved,
            wishes: VecDeque::new(),
        });
        let is_refused = seen.n_unserved > std::mem::replace(&mut state.n_unserved, seen.n_unserved);
        if is_refused || seen.n_running + seen.n_waiting > 0 {
            state.last_active = now;
        }
        let is_idle = now.since(state.last_active) >= config.idle;
        let wish = state.wish(&config, &seen, is_refused, is_idle);
        state.note(wish, now, config.down_cooldown);
        let since_change = now.since(state.last_change);
        let lower = state.wishes.front().map_or(wish, |&(_, highest)| highest);
        let next = if wish > state.desired && (since_change >= config.up_cooldown || state.desired == 0) {
            wish
        } else if lower < state.desired && since_change >= config.down_cooldown {
            lower
        } else {
            state.desired
        };
        if next != state.desired {
            (state.desired, state.last_change) = (next, now);
        }
        Some(state.desired)
    }

    /// Number of replicas of the last decision.
    pub fn desired(&self) -> Option<u32> {
        self.state.as_ref().map(|state| state.desired)
    }
}

impl State {
    /// Number of replicas that this observation alone requires.
    fn wish(&self, config: &AutoscaleConfig, seen: &Observation, is_refused: bool, is_idle: bool) -> u32 {
        let fewest = if is_idle { config.min_replicas } else { config.min_replicas.max(1) };
        let within = |wish: u32| wish.clamp(fewest, config.max_replicas);
        if seen.n_replicas == 0 {
            // Those that were asked for may be starting; who finds none asks for one.
            let needed = u32::from(is_refused || seen.n_waiting > 0);
            return if is_idle { within(needed) } else { within(self.desired.max(needed)) };
        }
        let n = f64::from(seen.n_replicas);
        let sequences = (seen.n_running + seen.n_waiting) as f64 / (n * f64::from(config.target_sequences));
        let kv_use = seen.kv_use / config.target_kv_use;
        let ttft = seen.predicted_ttft.0 as f64 / config.target_ttft.0 as f64;
        let ratio = sequences.max(kv_use).max(ttft).min(2.0);
        if (ratio - 1.0).abs() <= TOLERANCE {
            return within(seen.n_replicas);
        }
        within((n * ratio).ceil() as u32)
    }

    fn note(&mut self, wish: u32, now: Timestamp, window: Nanos) {
        while self.wishes.back().is_some_and(|&(_, earlier)| earlier <= wish) {
            self.wishes.pop_back();
        }
        self.wishes.push_back((now, wish));
        while self.wishes.front().is_some_and(|&(at, _)| now.since(at) > window) {
            self.wishes.pop_front();
        }
    }
}
