//! Settings of a simulated fleet. Where the product has a setting, its own type stands here.

use std::collections::BTreeMap;
use std::sync::Arc;

use throng_core::engine::EngineConfig;
use throng_core::fleet::health::HealthConfig;
use throng_core::fleet::limits::Limits;
use throng_core::fleet::overload::GateConfig;
use throng_core::fleet::routing::Policy;
use throng_core::scheduling::executor::ExecutorCapacity;
use throng_core::scheduling::scheduler::{SchedulerConfig, SpeculationMethod};
use throng_core::time::Nanos;

use crate::cost::CostModel;
use crate::error::{SimError, check_not_negative, check_positive};

/// A gateway and its replicas.
#[derive(Debug, Clone)]
pub struct FleetConfig {
    /// Replicas of the fleet.
    pub replicas: Vec<ReplicaConfig>,
    /// The gateway in front of the replicas.
    pub gateway: GatewaySettings,
    /// Behaviour of the clients.
    pub clients: ClientConfig,
    /// Interval of the samples of each replica; `None`: no samples.
    pub sample_interval: Option<Nanos>,
}

/// Settings of a replica: its engine, and the time of its steps.
#[derive(Debug, Clone)]
pub struct ReplicaConfig {
    /// Capacity of the executor.
    pub capacity: ExecutorCapacity,
    /// Settings of the engine.
    pub engine: EngineConfig,
    /// Cost model of steps.
    pub cost: Arc<dyn CostModel>,
    /// Drafts, if the executor makes any.
    pub speculation: Option<SpeculationConfig>,
    /// One-way latency between gateway and replica.
    pub network: Nanos,
    /// Time that a new executor takes after one has failed.
    pub executor_restart: Nanos,
}

/// Drafts of an executor, of which a share is accepted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpeculationConfig {
    /// Number of drafts that are proposed for each sequence and step.
    pub n_drafts: u32,
    /// Probability that a draft is right if those before it are.
    pub acceptance: f64,
}

/// A stage that requests or tokens pass one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stage {
    /// Fixed time of a request or an event.
    pub fixed: Nanos,
    /// Nanoseconds for each token.
    pub per_token_ns: f64,
    /// Number of workers.
    pub n_workers: u32,
}

impl Stage {
    /// A stage that takes no time.
    pub const FREE: Self = Self { fixed: Nanos(0), per_token_ns: 0.0, n_workers: 1 };

    /// Whether it takes no time.
    pub fn is_free(&self) -> bool {
        self.fixed.0 == 0 && self.per_token_ns == 0.0
    }

    /// Time for this number of tokens.
    pub fn time(&self, n_tokens: u64) -> Nanos {
        Nanos(self.fixed.0.saturating_add((self.per_token_ns * n_tokens as f64) as u64))
    }
}

/// Settings of the gateway.
#[derive(Debug, Clone)]
pub struct GatewaySettings {
    /// Routing policy.
    pub policy: Policy,
    /// Health of replicas.
    pub health: HealthConfig,
    /// The overload gate; `None`: everybody enters.
    pub overload: Option<GateConfig>,
    /// Limits of tenants that have some of their own.
    pub limits: BTreeMap<u32, Limits>,
    /// Limits of every other tenant.
    pub default_limits: Limits,
    /// Rendering and tokenizing of prompts.
    pub tokenizing: Stage,
    /// Detokenizing and writing of output tokens.
    pub delivery: Stage,
    /// Time of a message between clients and gateway.
    pub client_network: Nanos,
    /// Interval of the replicas' reports.
    pub report_interval: Nanos,
    /// A connection without any sign of life is lost after this time.
    pub connection_timeout: Nanos,
    /// Time for which a started request waits for a replica when the last one is lost.
    pub patience: Nanos,
}

impl Default for GatewaySettings {
    /// Settings of a gateway of workers.
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            health: HealthConfig::of_workers(),
            overload: None,
            limits: BTreeMap::new(),
            default_limits: Limits::default(),
            tokenizing: Stage { fixed: Nanos(50_000), per_token_ns: 1_000.0, n_workers: 4 },
            delivery: Stage { fixed: Nanos(5_000), per_token_ns: 0.0, n_workers: 4 },
            client_network: Nanos(0),
            report_interval: Nanos::from_ms(250),
            connection_timeout: Nanos::from_ms(1_500),
            patience: Nanos::from_ms(10_000),
        }
    }
}

/// Behaviour of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientConfig {
    /// Maximum number of retries of a client after a refusal or a failure.
    pub max_retries: u32,
    /// Pause before the first retry, doubled for each further one; a longer `Retry-After` counts instead.
    pub backoff: Nanos,
    /// Time without any token after which a client disconnects; `None`: it waits until the end.
    pub patience: Option<Nanos>,
}

impl Default for ClientConfig {
    /// Clients that send a request once and wait.
    fn default() -> Self {
        Self { max_retries: 0, backoff: Nanos::from_ms(1_000), patience: None }
    }
}

impl ReplicaConfig {
    /// A replica of this capacity with steps of this `cost`, with the default settings of an engine, without
    /// speculation.
    pub fn new(capacity: ExecutorCapacity, cost: Arc<dyn CostModel>) -> Self {
        let scheduler =
            SchedulerConfig { speculation: SpeculationMethod::None, ..SchedulerConfig::default() };
        Self {
            capacity,
            engine: EngineConfig { scheduler, ..EngineConfig::default() },
            cost,
            speculation: None,
            network: Nanos(200_000),
            executor_restart: Nanos::from_ms(1_000),
        }
    }

    fn check(&self) -> Result<(), SimError> {
        let ExecutorCapacity { n_blocks, max_batch_tokens, max_batch_sequences, .. } = self.capacity;
        let at_least_one = [
            ("capacity.n_blocks", n_blocks),
            ("capacity.max_batch_tokens", max_batch_tokens),
            ("capacity.max_batch_sequences", max_batch_sequences),
            ("capacity.max_sequence_tokens", self.capacity.max_sequence_tokens),
            ("capacity.max_steps_in_flight", self.capacity.max_steps_in_flight),
        ];
        if let Some((field, _)) = at_least_one.into_iter().find(|(_, n)| *n == 0) {
            return Err(SimError::setting(field, "it is 0"));
        }
        if self.capacity.vocabulary_size < 2 {
            return Err(SimError::setting("capacity.vocabulary_size", "it is below 2"));
        }
        match &self.speculation {
            Some(speculation) if !(0.0..=1.0).contains(&speculation.acceptance) => Err(SimError::setting(
                "speculation.acceptance",
                format!("{} is not a number from 0 to 1", speculation.acceptance),
            )),
            _ => Ok(()),
        }
    }
}

impl FleetConfig {
    /// A fleet of equal replicas behind a gateway with default settings.
    pub fn uniform(replica: ReplicaConfig, n: usize) -> Self {
        Self {
            replicas: vec![replica; n],
            gateway: GatewaySettings::default(),
            clients: ClientConfig::default(),
            sample_interval: None,
        }
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// Names the first invalid setting.
    pub fn check(&self) -> Result<(), SimError> {
        if self.replicas.is_empty() {
            return Err(SimError::setting("replicas", "there is none"));
        }
        self.replicas.iter().try_for_each(ReplicaConfig::check)?;
        for (field, stage) in [("tokenizing", &self.gateway.tokenizing), ("delivery", &self.gateway.delivery)]
        {
            check_not_negative(field, stage.per_token_ns)?;
            if stage.n_workers == 0 {
                return Err(SimError::setting(field, "it has no workers"));
            }
        }
        check_positive("report_interval", self.gateway.report_interval.as_secs_f64())?;
        match self.sample_interval {
            Some(interval) => check_positive("sample_interval", interval.as_secs_f64()).map(|_| ()),
            None => Ok(()),
        }
    }
}
