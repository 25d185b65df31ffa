//! Shares of a machine's published peaks that real operators reach, as fits of measured times found them.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::{Machine, MachineKind};

/// Fits of measured times; `crates/plan/tests` computes them again and compares.
static MEASURED: LazyLock<Measured> =
    LazyLock::new(|| toml::from_str(include_str!("../../data/efficiencies.toml")).expect("a test parses it"));

/// Range of the measured steps; steps outside are not predicted.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredRange {
    /// Maximum number of tokens of one step.
    pub max_tokens: u32,
    /// Maximum number of devices that share one product.
    pub max_devices: u32,
}

/// Relative errors of predictions for steps that the fit did not use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorBar {
    /// Median of the absolute relative errors.
    pub median: f64,
    /// The error that nine of ten predictions stay below.
    pub p90: f64,
}

/// Shares of the peaks.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Efficiency {
    /// Machines that it was measured on, or that have the same chip.
    pub machines: Vec<String>,
    /// Source of the measurements.
    pub source: String,
    /// Share of the peak of operations.
    pub compute: f64,
    /// Share of the peak of memory bandwidth.
    pub memory: f64,
    /// Seconds that a product takes at least.
    pub launch_s: f64,
    /// Exponent that joins reading and multiplying: 1 adds them, a large one takes the longer.
    pub sharpness: f64,
    /// Share of a product's arithmetic that is done in whole waves of tiles over all multiprocessors.
    pub waves: f64,
    /// Share of the memory bandwidth of norms, activations and additions.
    pub elementwise_memory: f64,
    /// Minimum seconds of an elementwise operation.
    pub elementwise_launch_s: f64,
    /// Seconds that an all-reduce takes at least.
    pub all_reduce_s: f64,
    /// Share of the peak of links in an all-reduce.
    pub links: f64,
    /// Exponent that joins the two.
    pub link_sharpness: f64,
    /// The measured range of steps; `None` without a measurement.
    pub range: Option<MeasuredRange>,
    /// Errors of predictions; none if they are not known.
    pub error: Option<ErrorBar>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    #[serde(rename = "efficiency")]
    efficiencies: Vec<Efficiency>,
    /// Accelerators that were not measured.
    accelerator: Efficiency,
    /// Shares of the peaks on processors.
    processor: Efficiency,
}

impl Efficiency {
    /// The efficiencies of a machine: measured on it, or those of its kind.
    ///
    /// # Panics
    /// Never: a test parses the file.
    pub fn of(machine: &Machine) -> Self {
        let is_it = |found: &&Self| found.machines.contains(&machine.name);
        let of_kind = match machine.kind {
            MachineKind::Accelerator => &MEASURED.accelerator,
            MachineKind::Processor => &MEASURED.processor,
        };
        MEASURED.efficiencies.iter().find(is_it).unwrap_or(of_kind).clone()
    }

    /// The published peaks themselves: no machine is faster.
    pub fn ideal() -> Self {
        Self {
            machines: Vec::new(),
            source: "the published peaks".to_owned(),
            compute: 1.0,
            memory: 1.0,
            launch_s: 0.0,
            sharpness: f64::INFINITY,
            waves: 0.0,
            elementwise_memory: f64::INFINITY,
            elementwise_launch_s: 0.0,
            all_reduce_s: 0.0,
            links: 1.0,
            link_sharpness: f64::INFINITY,
            range: None,
            error: None,
        }
    }
}
