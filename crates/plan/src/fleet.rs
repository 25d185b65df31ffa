//! Replicas of one kind that share a load, with their price and power. Prompts may be computed apart from
//! answers.

use std::sync::Arc;

use throng_sim::cost::{CostModel, StepShape};

use crate::cost::{Calibration, Roofline};
use crate::error::{PlanError, not_negative};
use crate::load::Load;
use crate::machine::{Efficiency, ErrorBar, Machine};
use crate::memory::MemoryPlan;
use crate::model_shape::ModelShape;
use crate::parallelism::Parallelism;
use crate::replica::{Batching, Replica, Role, Steady, Targets};

/// Seconds of an hour.
const HOUR_S: f64 = 3600.0;

/// Share of the target of the first token that replicas which answer may take, where prompts are computed
/// apart; the rest is for those that compute prompts.
const DECODE_SHARE: f64 = 0.5;

/// Where prompts are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layout {
    /// By the replicas that answer.
    Together,
    /// By replicas of their own, which send keys and values to those that answer.
    Apart,
}

/// A way to serve a model with one kind of machine.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The machine.
    pub machine: Machine,
    /// The model.
    pub model: ModelShape,
    /// Devices of a replica.
    pub parallelism: Parallelism,
    /// Bounds of batches.
    pub batching: Batching,
    /// Where prompts are computed.
    pub layout: Layout,
    /// Share of a device's memory that may be used.
    pub memory_share: f64,
    /// Seconds of a step that no device computes in.
    pub step_overhead_s: f64,
    /// Shares of the peaks in place of those in the box.
    pub efficiency: Option<Efficiency>,
    /// Durations of steps that were measured, in place of the roofline.
    pub measured: Option<Arc<Calibration>>,
}

/// A fleet that meets a load.
#[derive(Debug, Clone)]
pub struct FleetPlan {
    /// Name of its machine.
    pub machine: String,
    /// Devices of a replica.
    pub parallelism: Parallelism,
    /// Bounds of batches.
    pub batching: Batching,
    /// Where prompts are computed.
    pub layout: Layout,
    /// Replicas that answer, without spare ones.
    pub n_replicas: u64,
    /// Replicas that compute prompts for them.
    pub n_prefill: u64,
    /// Replicas of each kind that may be lost.
    pub n_spare: u64,
    /// All devices.
    pub n_devices: u64,
    /// State of a replica that answers. First-token times include those of prefill replicas.
    pub steady: Steady,
    /// Load in parts of the highest load.
    pub utilization: f64,
    /// Requests a second that the replicas without the spare ones answer within the targets.
    pub highest_rate: f64,
    /// Price of an hour.
    pub price_per_hour: Option<f64>,
    /// Price of a million output tokens at this load.
    pub price_per_million: Option<f64>,
    /// Watts of all devices under load.
    pub watts: Option<f64>,
    /// Joules of an output token.
    pub joules_per_token: Option<f64>,
    /// Bytes of weights on each device.
    pub weight_bytes: f64,
    /// Bytes for keys and values on each device.
    pub cache_bytes: f64,
    /// Relative error of the durations of steps, where it is known.
    pub error: Option<ErrorBar>,
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
    /// When the model does not fit, a figure is absent, or steps would be larger than what was measured.
    pub fn replica(&self, load: &Load, role: Role) -> Result<Replica, PlanError> {
        self.parallelism.check()?;
        load.at(1.0).check()?;
        not_negative("seconds of a step that no device computes in", self.step_overhead_s)?;
        let longest = (load.prompt.p99() + load.output.p99()).ceil() as u64;
        if longest > u64::from(self.model.max_sequence_tokens) {
            return Err(PlanError::value(
                "the tokens of a long request, prompt and answer",
                longest,
                "expected at most the context length of the model",
            ));
        }
        let memory =
            MemoryPlan::new(&self.machine, &self.model, self.parallelism, self.memory_share, longest)?;
        let cost: Arc<dyn CostModel> = match &self.measured {
            Some(measured) => {
                self.check_range(measured)?;
                Arc::<Calibration>::clone(measured)
            }
            None => {
                let roofline = Roofline::new(&self.machine, &self.model, self.parallelism)?;
                let mut roofline = roofline.with_efficiency(self.efficiency());
                roofline.check_range(self.batching.max_batch_tokens)?;
                roofline.overhead_s = self.step_overhead_s;
                Arc::new(roofline)
            }
        };
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

    /// Checks that the bounds of batches lie in the measured range.
    fn check_range(&self, measured: &Calibration) -> Result<(), PlanError> {
        let Batching { max_sequences, max_batch_tokens, .. } = self.batching;
        measured.check()?;
        measured
            .predict(&StepShape {
                n_sequences: max_sequences,
                n_tokens: max_batch_tokens,
                ..StepShape::default()
            })
            .map(|_| ())
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

    /// The highest rate that one replica that answers meets the targets at, and how many replicas that
    /// compute prompts it needs for that.
    ///
    /// # Errors
    /// Errors of [`Self::replica`].
    pub fn highest_rate(&self, load: &Load, targets: &Targets) -> Result<(f64, f64), PlanError> {
        if self.layout == Layout::Together {
            return Ok((self.replica(load, Role::Both)?.highest_rate(load, targets)?, 0.0));
        }
        let decode = self.replica(load, Role::Decode)?;
        let half = targets.first_token_s.map(|target| target * DECODE_SHARE);
        let decode_targets = Targets { first_token_s: half, ..*targets };
        let rate = decode.highest_rate(load, &decode_targets)?;
        let sent_s = decode.steady(&load.at(rate.max(1e-6))).map_or(0.0, |steady| steady.first_token.p99);
        // What remains of the target once keys and values have been sent and the first step is done.
        let first_token_s = targets.first_token_s.map(|target| (target - sent_s).max(1e-9));
        let prefill_targets = Targets { first_token_s, gap_s: None };
        let prefill_rate = self.replica(load, Role::Prefill)?.highest_rate(load, &prefill_targets)?;
        Ok((if prefill_rate > 0.0 { rate } else { 0.0 }, rate / prefill_rate.max(f64::MIN_POSITIVE)))
    }

    /// The smallest fleet of this kind that meets the load, and goes on meeting it when `n_spare` replicas
    /// are lost.
    ///
    /// # Errors
    /// Errors of [`Self::replica`], and when no rate meets the targets.
    pub fn smallest(&self, load: &Load, targets: &Targets, n_spare: u64) -> Result<FleetPlan, PlanError> {
        load.check()?;
        let (highest, prefill_each) = self.highest_rate(load, targets)?;
        if highest <= 0.0 {
            return Err(self.unreachable(load, targets));
        }
        let n_replicas = (load.requests_per_s / highest).ceil().max(1.0);
        let n_prefill = (load.requests_per_s / highest * prefill_each).ceil();
        self.with(load, n_replicas as u64, n_prefill as u64, n_spare, highest)
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
        let (highest, prefill_each) = self.highest_rate(load, targets)?;
        if highest <= 0.0 {
            return Err(self.unreachable(load, targets));
        }
        let n_prefill = (n_replicas as f64 * prefill_each).ceil() as u64;
        self.with(&load.at(highest * n_replicas as f64), n_replicas, n_prefill, 0, highest)
    }

    /// The reason why no rate meets the targets: the times of a single request.
    fn unreachable(&self, load: &Load, targets: &Targets) -> PlanError {
        let alone = self.replica(load, Role::Both).and_then(|replica| replica.steady(&load.at(1e-6)));
        let Ok(alone) = alone else {
            return PlanError::Unreachable {
                on: self.name(),
                target: "the load",
                reason: "not even one request at a time fits".to_owned(),
            };
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

    fn with(
        &self,
        load: &Load,
        n_replicas: u64,
        n_prefill: u64,
        n_spare: u64,
        highest: f64,
    ) -> Result<FleetPlan, PlanError> {
        let each = load.at(load.requests_per_s / n_replicas as f64);
        let (replica, mut steady) = match self.layout {
            Layout::Together => {
                let replica = self.replica(load, Role::Both)?;
                let steady = replica.steady(&each)?;
                (replica, steady)
            }
            Layout::Apart => {
                let replica = self.replica(load, Role::Decode)?;
                let steady = replica.steady(&each)?;
                (replica, steady)
            }
        };
        if self.layout == Layout::Apart {
            let prefill = self.replica(load, Role::Prefill)?;
            let before = prefill.steady(&load.at(load.requests_per_s / n_prefill as f64))?;
            steady.first_token.mean += before.first_token.mean;
            steady.first_token.p99 += before.first_token.p99;
            steady.answer_s += before.first_token.mean;
        }
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
            utilization: each.requests_per_s / highest,
            highest_rate: highest * n_replicas as f64,
            price_per_hour,
            price_per_million: price_per_hour.map(|price| price_per_million(price, tokens_per_s)),
            watts,
            joules_per_token: watts.map(|watts| watts / tokens_per_s),
            weight_bytes: replica.memory.weight_bytes,
            cache_bytes: replica.memory.cache_bytes,
            error: self.error(),
        })
    }
}

/// Price of a million tokens, by the price of an hour and the tokens of a second.
pub fn price_per_million(price_per_hour: f64, tokens_per_s: f64) -> f64 {
    price_per_hour / HOUR_S / tokens_per_s * 1e6
}
