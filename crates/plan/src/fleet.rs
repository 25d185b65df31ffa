//! Replicas of one kind that share a load, with their price and power. Prompts may be computed apart from
//! answers.

use std::sync::Arc;

use throng_sim::cost::StepShape;

use crate::cost::{Calibration, Roofline, StepCost};
use crate::error::PlanError;
use crate::load::Load;
use crate::machine::{Efficiency, ErrorBar, Machine};
use crate::memory::MemoryPlan;
use crate::model_shape::ModelShape;
use crate::parallelism::Parallelism;
use crate::replica::{Batching, Replica, Role, Steady, Targets};

/// Number of seconds of an hour.
const HOUR_S: f64 = 3600.0;

/// Share of the target of the first token for the replicas that answer, if others compute prompts; the rest
/// is for those.
const DECODE_SHARE: f64 = 0.5;

/// Maximum seconds of a step that no device computes in.
const MAX_OVERHEAD_S: f64 = 60.0;

/// Maximum number of replicas of each kind.
const MAX_REPLICAS: f64 = 1e9;

/// Where prompts are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layout {
    /// The replicas that answer also compute prompts.
    Together,
    /// Separate replicas compute prompts and send keys and values to those that answer.
    Apart,
}

/// A way to serve a model with one kind of machine.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Machine of the fleet.
    pub machine: Machine,
    /// Shape of the model.
    pub model: ModelShape,
    /// Division of a replica over devices.
    pub parallelism: Parallelism,
    /// Bounds of batches.
    pub batching: Batching,
    /// Where prompts are computed.
    pub layout: Layout,
    /// Share of a device's memory that may be used.
    pub memory_share: f64,
    /// Seconds of a step that no device computes in.
    pub step_overhead_s: f64,
    /// Efficiencies that replace the built-in ones.
    pub efficiency: Option<Efficiency>,
    /// Durations of steps that were measured, in place of the roofline.
    pub measured: Option<Arc<Calibration>>,
}

/// A fleet that meets a load.
#[derive(Debug, Clone)]
pub struct FleetPlan {
    /// Name of its machine.
    pub machine: String,
    /// Division of a replica over devices.
    pub parallelism: Parallelism,
    /// Bounds of batches.
    pub batching: Batching,
    /// Where prompts are computed.
    pub layout: Layout,
    /// Number of replicas that answer, without spare ones.
    pub n_replicas: u64,
    /// Number of replicas that compute prompts for them.
    pub n_prefill: u64,
    /// Replicas of each kind that may be lost.
    pub n_spare: u64,
    /// Number of all devices.
    pub n_devices: u64,
    /// State of a replica that generates. First-token times include those of prefill replicas.
    pub steady: Steady,
    /// Load, relative to the highest load.
    pub utilization: f64,
    /// Requests a second that the replicas without the spare ones answer within the targets.
    pub highest_rate: f64,
    /// Price of the fleet for an hour.
    pub price_per_hour: Option<f64>,
    /// Price of a million output tokens at this load.
    pub price_per_million: Option<f64>,
    /// Power of all devices under load in watts.
    pub watts: Option<f64>,
    /// Joules of an output token.
    pub joules_per_token: Option<f64>,
    /// Bytes of weights on each device.
    pub weight_bytes: f64,
    /// Bytes for keys and values on each device.
    pub cache_bytes: f64,
    /// Relative error of the durations of steps, if it is known.
    pub error: Option<ErrorBar>,
}

/// Highest rates of one replica of each kind, in requests a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HighestRates {
    /// Rate of a replica that answers.
    pub answers: f64,
    /// Rate of a replica that computes prompts for others; none if the answering replicas compute them.
    pub prompts: Option<f64>,
}

impl HighestRates {
    /// The highest rate of a fleet.
    pub fn of(&self, n_replicas: u64, n_prefill: u64) -> f64 {
        let answers = self.answers * n_replicas as f64;
        self.prompts.map_or(answers, |rate| answers.min(rate * n_prefill as f64))
    }
}

impl Setup {
    /// The name in reports.
    pub fn name(&self) -> String {
        let apart = if self.layout == Layout::Apart { "prefill apart" } else { "" };
        let parts = [self.machine.name.clone(), self.parallelism.name(), apart.to_owned()];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// A replica of this kind that does one part of answering.
    ///
    /// # Errors
    /// When the model does not fit, a figure is absent, or steps would be larger than the measured ones.
    pub fn replica(&self, load: &Load, role: Role) -> Result<Replica, PlanError> {
        self.parallelism.check()?;
        load.at(1.0).check()?;
        if !(0.0..=MAX_OVERHEAD_S).contains(&self.step_overhead_s) {
            return Err(PlanError::value(
                "seconds of a step that no device computes in",
                self.step_overhead_s,
                "expected a number from 0 to 60",
            ));
        }
        let longest = (load.prompt.p99() + load.output.p99()).ceil() as u64;
        if longest > u64::from(self.model.max_sequence_tokens) {
            return Err(PlanError::value(
                "the tokens of a long request, prompt and answer",
                longest,
                "expected at most the context length of the model: take shorter prompts and answers, or a smaller --variation",
            ));
        }
        let memory =
            MemoryPlan::new(&self.machine, &self.model, self.parallelism, self.memory_share, longest)?;
        let cost: Arc<dyn StepCost> = match &self.measured {
            Some(measured) => {
                measured.check()?;
                Arc::<Calibration>::clone(measured)
            }
            None => {
                let roofline = Roofline::new(&self.machine, &self.model, self.parallelism)?;
                let mut roofline = roofline.with_efficiency(self.efficiency());
                roofline.overhead_s = self.step_overhead_s;
                Arc::new(roofline)
            }
        };
        cost.check_range(&StepShape {
            n_sequences: self.batching.max_sequences,
            n_tokens: self.batching.max_batch_tokens,
            ..StepShape::default()
        })?;
        let replica = Replica {
            name: self.name(),
            model: self.model.clone(),
            cost,
            memory,
            batching: self.batching,
            role,
            n_lanes: self.parallelism.pipeline,
            transfer_bytes_per_s: self.transfer_bytes_per_s(load, role)?,
            n_devices: self.parallelism.n_devices(),
        };
        replica.check()?;
        Ok(replica)
    }

    fn transfer_bytes_per_s(&self, load: &Load, role: Role) -> Result<Option<f64>, PlanError> {
        let n_devices = f64::from(self.parallelism.n_devices());
        if role == Role::Decode {
            return Ok(Some(self.machine.link()? * n_devices));
        }
        if load.host_cached_share == 0.0 {
            return Ok(None);
        }
        let Some(rate) = &self.machine.host_bytes_per_s else {
            return Err(PlanError::NoFigure {
                machine: self.machine.name.clone(),
                figure: "host_bytes_per_s",
                purpose: "to bring cached keys and values back from host memory",
            });
        };
        Ok(Some(rate.value * n_devices))
    }

    fn efficiency(&self) -> Efficiency {
        self.efficiency.clone().unwrap_or_else(|| Efficiency::of(&self.machine))
    }

    fn error(&self) -> Option<ErrorBar> {
        match &self.measured {
            Some(measured) => Some(measured.error),
            None => self.efficiency().error,
        }
    }

    /// The highest rates at which a replica of each kind meets the targets; 0 where it cannot.
    ///
    /// # Errors
    /// Errors of [`Self::replica`].
    pub fn highest_rates(&self, load: &Load, targets: &Targets) -> Result<HighestRates, PlanError> {
        if self.layout == Layout::Together {
            let answers = self.replica(load, Role::Both)?.highest_rate(load, targets)?;
            return Ok(HighestRates { answers, prompts: None });
        }
        let decode = self.replica(load, Role::Decode)?;
        let half = targets.first_token_s.map(|target| target * DECODE_SHARE);
        let decode_targets = Targets { first_token_s: half, ..*targets };
        let answers = decode.highest_rate(load, &decode_targets)?;
        let sent_s = decode.steady(&load.at(answers.max(1e-6))).map_or(0.0, |steady| steady.first_token.p99);
        // What remains of the target once keys and values have been sent and the first step is done.
        let first_token_s = targets.first_token_s.map(|target| (target - sent_s).max(1e-9));
        let prefill_targets = Targets { first_token_s, gap_s: None };
        let prompts = self.replica(load, Role::Prefill)?.highest_rate(load, &prefill_targets)?;
        Ok(HighestRates { answers, prompts: Some(prompts) })
    }

    /// The smallest fleet of this kind that meets the load, even after `n_spare` replicas are lost.
    ///
    /// # Errors
    /// Errors of [`Self::replica`], and when no rate meets the targets.
    pub fn smallest(&self, load: &Load, targets: &Targets, n_spare: u64) -> Result<FleetPlan, PlanError> {
        load.check()?;
        let highest = self.highest_rates(load, targets)?;
        if highest.of(1, 1) <= 0.0 {
            return Err(self.unreachable(load, targets));
        }
        let n_for = |rate: f64| (load.requests_per_s / rate).ceil().max(1.0) as u64;
        self.with(load, n_for(highest.answers), highest.prompts.map_or(0, n_for), n_spare, highest)
    }

    /// A fleet of this many replicas that answer, at its highest load.
    ///
    /// # Errors
    /// Errors of [`Self::smallest`].
    pub fn at_highest(
        &self,
        load: &Load,
        targets: &Targets,
        n_replicas: u64,
    ) -> Result<FleetPlan, PlanError> {
        if n_replicas == 0 {
            return Err(PlanError::value("replicas", n_replicas, "expected at least one"));
        }
        let highest = self.highest_rates(load, targets)?;
        if highest.of(1, 1) <= 0.0 {
            return Err(self.unreachable(load, targets));
        }
        let most = highest.answers * n_replicas as f64;
        let n_prefill = highest.prompts.map_or(0, |rate| (most / rate).ceil() as u64);
        self.with(&load.at(most), n_replicas, n_prefill, 0, highest)
    }

    /// The reason why no rate meets the targets: the times of a single request.
    fn unreachable(&self, load: &Load, targets: &Targets) -> PlanError {
        let alone = self.replica(load, Role::Both).and_then(|replica| replica.steady(&load.at(1e-6)));
        let alone = match alone {
            Ok(alone) => alone,
            Err(error) => return error,
        };
        let misses_first = targets.first_token_s.is_some_and(|target| alone.first_token.p99 > target);
        let (target, best) = if misses_first {
            ("the first token", alone.first_token.p99)
        } else {
            ("the gap", alone.gap.p99)
        };
        let reason = format!("without other requests it is {:.1} ms at the 99th percentile", best * 1e3);
        PlanError::Unreachable { on: self.name(), target, reason }
    }

    /// The state of a replica that answers, in a fleet under a load. First-token times include those of
    /// replicas that compute prompts.
    ///
    /// # Errors
    /// Errors of [`Self::replica`], and when the load is more than the fleet can answer.
    pub fn steady(&self, load: &Load, n_replicas: u64, n_prefill: u64) -> Result<Steady, PlanError> {
        let each = |n: u64| load.at(load.requests_per_s / n as f64);
        if self.layout == Layout::Together {
            return self.replica(load, Role::Both)?.steady(&each(n_replicas));
        }
        let mut steady = self.replica(load, Role::Decode)?.steady(&each(n_replicas))?;
        let before = self.replica(load, Role::Prefill)?.steady(&each(n_prefill))?;
        steady.first_token.mean += before.first_token.mean;
        steady.first_token.p99 += before.first_token.p99;
        steady.answer_s += before.first_token.mean;
        Ok(steady)
    }

    fn with(
        &self,
        load: &Load,
        n_replicas: u64,
        n_prefill: u64,
        n_spare: u64,
        highest: HighestRates,
    ) -> Result<FleetPlan, PlanError> {
        let kinds =
            [("replicas", n_replicas), ("replicas for prompts", n_prefill), ("spare replicas", n_spare)];
        for (name, n) in kinds {
            if n as f64 > MAX_REPLICAS {
                return Err(PlanError::value(name, n, "expected at most 1000000000"));
            }
        }
        let steady = self.steady(load, n_replicas, n_prefill)?;
        let highest_rate = highest.of(n_replicas, n_prefill);
        let role = if self.layout == Layout::Apart { Role::Decode } else { Role::Both };
        let memory = self.replica(load, role)?.memory;
        let n_spare_all = if n_prefill > 0 { 2 * n_spare } else { n_spare };
        let n_devices = (n_replicas + n_prefill + n_spare_all) * u64::from(self.parallelism.n_devices());
        let tokens_per_s = load.requests_per_s * load.output.mean;
        let of_all = |figure: &Option<crate::machine::Figure>| {
            figure.as_ref().map(|figure| figure.value * n_devices as f64)
        };
        let price_per_hour = of_all(&self.machine.price_per_hour);
        let watts = of_all(&self.machine.watts);
        Ok(FleetPlan {
            machine: self.machine.name.clone(),
            parallelism: self.parallelism,
            batching: self.batching,
            layout: self.layout,
            n_replicas,
            n_prefill,
            n_spare,
            n_devices,
            steady,
            utilization: load.requests_per_s / highest_rate,
            highest_rate,
            price_per_hour,
            price_per_million: price_per_hour.map(|price| price_per_million(price, tokens_per_s)),
            watts,
            joules_per_token: watts.map(|watts| watts / tokens_per_s),
            weight_bytes: memory.weight_bytes,
            cache_bytes: memory.cache_bytes,
            error: self.error(),
        })
    }
}

/// Price of a million tokens, by the price of an hour and the tokens of a second.
pub fn price_per_million(price_per_hour: f64, tokens_per_s: f64) -> f64 {
    price_per_hour / HOUR_S / tokens_per_s * 1e6
}
