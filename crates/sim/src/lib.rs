//! A fleet under a virtual clock: the decisions of `throng-core`, driven by a cost model instead of an
//! executor and by workloads and faults instead of clients and networks. The same inputs give the same
//! events.
//!
//! A run is made of three things: a [`FleetConfig`](fleet::FleetConfig) (replicas, each a real
//! [`EngineCore`](throng_core::engine::EngineCore) with a [`CostModel`](cost::CostModel), and a gateway with
//! the product's own router, health, limits, overload gate and failover), a [`Workload`](workload::Workload),
//! and [faults](fleet::Fault). An [`Observer`](outcome::Observer) is notified of each request;
//! [`ReportBuilder`](report::ReportBuilder) makes a [`Report`](report::Report) of them.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use throng_core::scheduling::executor::ExecutorCapacity;
//! use throng_core::time::Nanos;
//! use throng_core::timeline::latency::Objective;
//! use throng_sim::cost::LinearCostModel;
//! use throng_sim::distribution::Distribution;
//! use throng_sim::fleet::{FleetConfig, ReplicaConfig};
//! use throng_sim::report::ReportBuilder;
//! use throng_sim::simulation::Simulation;
//! use throng_sim::workload::{ArrivalProcess, OpenLoop, RequestShape};
//!
//! let capacity = ExecutorCapacity {
//!     n_blocks: 4096,
//!     max_batch_tokens: 512,
//!     max_batch_sequences: 64,
//!     max_sequence_tokens: 8192,
//!     vocabulary_size: 32_000,
//!     n_state_slots: 0,
//!     max_steps_in_flight: 1,
//!     takes_whole_prompts: false,
//!     takes_media: false,
//!     keeps_media_whole: false,
//!     n_stages: 1,
//! };
//! let cost = LinearCostModel {
//!     fixed: Duration::from_millis(8),
//!     per_token: Duration::from_micros(40),
//!     ..LinearCostModel::default()
//! };
//! let fleet = FleetConfig::uniform(ReplicaConfig::new(capacity, Arc::new(cost)), 2);
//! let lengths = RequestShape::new(Distribution::Constant(300.0), Distribution::Exponential { mean: 100.0 });
//! let arrivals = ArrivalProcess::Poisson { rate: 5.0 };
//! let workload = OpenLoop::new(arrivals, lengths, Nanos::from_ms(20_000), 1)?;
//! let mut report = ReportBuilder::new(Objective::default(), Nanos(0));
//! let totals = Simulation::new(fleet, Box::new(workload), 1)?.run(&mut report)?;
//! let report = report.finish(totals);
//! assert!(report.first_token.p99_ms < 500.0);
//! # Ok::<(), throng_sim::SimError>(())
//! ```
//!
//! A module imports only from modules above it: `error`, `distribution`, `cost`, `event_queue`, `workload`,
//! `profile`, `recording`, `fleet`, `outcome`, `report`, `simulation`; `sweep` runs several of them on
//! threads.
#![forbid(unsafe_code)]

pub mod cost;
pub mod distribution;
mod error;
pub mod event_queue;
pub mod fleet;
pub mod outcome;
pub mod profile;
pub mod recording;
pub mod report;
pub mod simulation;
pub mod sweep;
pub mod workload;

pub use error::SimError;
