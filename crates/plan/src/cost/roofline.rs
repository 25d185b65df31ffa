//! The duration of a step by the machine's peaks, corrected by the shares that real operators reach.
//!
//! Each layer is the sum of its matrix products, its attention, its norms and additions, its recurrent states
//! and the exchanges between devices. Weights of a step are read once; experts as many as its tokens touch.

use std::time::Duration;

use throng_sim::cost::{CostModel, StepShape};

use super::collective::Links;
use super::fit::elementwise_seconds;
use super::product::{ACTIVATION_BYTES, Product, ProductRates, joined};
use super::{StepCost, duration};
use crate::error::PlanError;
use crate::machine::{ComputeType, Efficiency, Machine};
use crate::model_shape::{Cut, ExpertShape, LayerShape, Matrix, ModelShape};
use crate::parallelism::Parallelism;

/// Number of passes over the residual stream that take the time of a norm. A norm reads and writes it once,
/// in kernels that reach a third of the bandwidth.
pub(super) const NORM_PASSES: f64 = 6.0;

/// Passes of an addition, which reads two vectors and writes one.
pub(super) const ADD_PASSES: f64 = 3.0;

/// Passes of rotations and activations, over the columns of the product before them.
pub(super) const CUT_PASSES: f64 = 2.25;

/// Durations of the parts of a step in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepParts {
    /// Seconds of the products of all layers and the logits.
    pub products: f64,
    /// Seconds of the attention over keys and values.
    pub attention: f64,
    /// Seconds of norms, activations, additions and recurrent states.
    pub elementwise: f64,
    /// Seconds of exchanges between devices.
    pub exchanges: f64,
    /// Seconds that do not depend on the step.
    pub overhead: f64,
}

impl StepParts {
    /// Sum of all parts.
    pub fn total(&self) -> f64 {
        self.products + self.attention + self.elementwise + self.exchanges + self.overhead
    }
}

/// Machine, model and parallelism.
#[derive(Debug, Clone, PartialEq)]
pub struct Roofline {
    model: ModelShape,
    parallelism: Parallelism,
    rates: ProductRates,
    attention_rate: f64,
    links: Links,
    efficiency: Efficiency,
    /// Seconds of a step that no device computes in.
    pub overhead_s: f64,
    name: String,
}

impl Roofline {
    /// A model on devices of a machine.
    ///
    /// # Errors
    /// When a figure is absent that is needed, or the links join fewer devices than share matrices.
    pub fn new(machine: &Machine, model: &ModelShape, parallelism: Parallelism) -> Result<Self, PlanError> {
        parallelism.check()?;
        machine.check()?;
        let is_alone = parallelism.n_devices() == 1;
        let links = Links { bytes_per_s: if is_alone { f64::INFINITY } else { machine.link()? } };
        let n_linked = machine.linked.as_ref().map_or(1.0, |linked| linked.value);
        let n_sharing = f64::from(parallelism.tensor) * f64::from(parallelism.expert);
        if n_sharing > n_linked {
            return Err(PlanError::value(
                format!("tensor times expert parallelism on {}", machine.name),
                n_sharing,
                "expected at most the devices that fast links join",
            ));
        }
        let rates = ProductRates {
            operations_per_s: machine.operations_per_s(model.weights.compute)?,
            bytes_per_s: machine.bandwidth()?,
            units: machine.units.as_ref().map(|units| units.value),
        };
        Ok(Self {
            model: model.clone(),
            parallelism,
            rates,
            attention_rate: machine.operations_per_s(ComputeType::Bf16)?,
            links,
            efficiency: Efficiency::of(machine),
            overhead_s: 0.0,
            name: machine.name.clone(),
        })
    }

    /// Replaces the shares of the peaks.
    #[must_use]
    pub fn with_efficiency(mut self, efficiency: Efficiency) -> Self {
        self.efficiency = efficiency;
        self
    }

    /// Durations of the parts of a step.
    pub fn parts(&self, step: &StepShape) -> StepParts {
        let groups = f64::from(self.parallelism.expert);
        let tokens = f64::from(step.n_tokens) / groups;
        let mut parts = StepParts { overhead: self.overhead_s, ..StepParts::default() };
        for layer in &self.model.layers {
            let n = layer.n_layers;
            parts.products += n * self.layer_products(layer, tokens);
            parts.attention += n * self.attention(layer, step, groups);
            parts.elementwise += n * self.elementwise(layer, step, tokens, groups);
            parts.exchanges += n * self.exchanges(layer, tokens);
        }
        let n_sends = f64::from(self.parallelism.pipeline - 1);
        let stream_bytes = tokens * self.model.hidden_size * ACTIVATION_BYTES;
        parts.exchanges += n_sends * self.links.send(stream_bytes, &self.efficiency);
        if step.n_logits > 0 {
            let output = self.output(f64::from(step.n_logits) / groups);
            parts.products += self.rates.seconds(&output, &self.efficiency);
        }
        parts
    }

    fn output(&self, m: f64) -> Product {
        let n = self.model.vocabulary_size / f64::from(self.parallelism.tensor);
        Product { m, n, k: self.model.hidden_size, weight_bytes: self.model.weights.bits / 8.0 }
    }

    fn layer_products(&self, layer: &LayerShape, tokens: f64) -> f64 {
        let n_sharing = f64::from(self.parallelism.tensor);
        let weight_bytes = self.model.weights.bits / 8.0;
        let of_matrix = |matrix: &Matrix| {
            let Matrix { n, k, .. } = matrix.part(n_sharing);
            self.rates.seconds(&Product { m: tokens, n, k, weight_bytes }, &self.efficiency)
        };
        let dense: f64 = layer.matrices.iter().map(of_matrix).sum();
        dense + layer.experts.as_ref().map_or(0.0, |experts| self.routed(experts, tokens))
    }

    /// The products of routed experts, of one device.
    fn routed(&self, experts: &ExpertShape, tokens: f64) -> f64 {
        if tokens <= 0.0 {
            return 0.0;
        }
        let groups = f64::from(self.parallelism.expert);
        let n_sharing = f64::from(self.parallelism.tensor);
        // Tokens of all groups meet in the experts of each.
        let n_rows = tokens * experts.n_used;
        let n_touched = experts.n_touched(tokens * groups) / groups;
        let weight_bytes = self.model.weights.bits / 8.0;
        let of_matrix = |matrix: &Matrix| {
            let Matrix { n, k, .. } = matrix.part(n_sharing);
            let read = n_touched * n * k * weight_bytes + n_rows * (n + k) * ACTIVATION_BYTES;
            let multiplying = 2.0 * n_rows * n * k / (self.rates.operations_per_s * self.efficiency.compute);
            let reading = read / (self.rates.bytes_per_s * self.efficiency.memory);
            self.efficiency.launch_s + joined(multiplying, reading, self.efficiency.sharpness)
        };
        experts.matrices.iter().map(of_matrix).sum()
    }

    fn attention(&self, layer: &LayerShape, step: &StepShape, groups: f64) -> f64 {
        let Some(cache) = layer.cache else { return 0.0 };
        let n_sharing = f64::from(self.parallelism.tensor);
        let seen = |all: f64, n: f64| layer.window.map_or(all, |window| all.min(n * window as f64));
        let context = seen(step.n_context_tokens as f64, f64::from(step.n_sequences)) / groups;
        let pairs = seen(step.n_attention_pairs as f64, f64::from(step.n_tokens)) / groups;
        let operations = layer.operations_per_pair * pairs / n_sharing;
        let bytes =
            cache.elements_per_token * self.model.kv_element_bytes * context / n_sharing.min(cache.n_heads);
        let multiplying = operations / (self.attention_rate * self.efficiency.compute);
        let reading = bytes / (self.rates.bytes_per_s * self.efficiency.memory);
        self.efficiency.launch_s + joined(multiplying, reading, self.efficiency.sharpness)
    }

    fn elementwise(&self, layer: &LayerShape, step: &StepShape, tokens: f64, groups: f64) -> f64 {
        let n_sharing = f64::from(self.parallelism.tensor);
        let seconds = |passes: f64, width: f64| {
            let bytes = tokens * passes * width * ACTIVATION_BYTES;
            elementwise_seconds(bytes, self.rates.bytes_per_s, &self.efficiency)
        };
        let is_cut = |matrix: &&Matrix| matrix.cut == Cut::Columns;
        let cut =
            layer.matrices.iter().filter(is_cut).map(|matrix| seconds(CUT_PASSES, matrix.part(n_sharing).n));
        let routed = layer.experts.iter().flat_map(|experts| {
            experts
                .matrices
                .iter()
                .filter(is_cut)
                .map(|m| seconds(CUT_PASSES, experts.n_used * m.part(n_sharing).n))
        });
        // A state is read and written.
        let state_bytes = 2.0 * layer.state_bytes * f64::from(step.n_sequences) / groups / n_sharing;
        let states = elementwise_seconds(state_bytes, self.rates.bytes_per_s, &self.efficiency);
        let norms = 2.0 * seconds(NORM_PASSES, self.model.hidden_size);
        norms + seconds(ADD_PASSES, self.model.hidden_size) + cut.chain(routed).sum::<f64>() + states
    }

    fn exchanges(&self, layer: &LayerShape, tokens: f64) -> f64 {
        let n_sharing = f64::from(self.parallelism.tensor);
        let stream_bytes = tokens * self.model.hidden_size * ACTIVATION_BYTES;
        let sums = layer.n_all_reduces * self.links.all_reduce(stream_bytes, n_sharing, &self.efficiency);
        let groups = f64::from(self.parallelism.expert);
        let routed = layer.experts.as_ref().map_or(0.0, |experts| {
            // Each token's row goes to its experts, and comes back.
            2.0 * self.links.all_to_all(stream_bytes * experts.n_used, groups, &self.efficiency)
        });
        sums + routed
    }
}

impl CostModel for Roofline {
    fn step_time(&self, step: &StepShape) -> Duration {
        duration(self.parts(step).total())
    }
}

impl StepCost for Roofline {
    fn check_range(&self, step: &StepShape) -> Result<(), PlanError> {
        let Some(range) = self.efficiency.range else { return Ok(()) };
        let refused = |name, value: u32, high: u32| {
            let (value, high) = (f64::from(value), f64::from(high));
            Err(PlanError::OutOfRange { name, value, by: self.name.clone(), low: 1.0, high })
        };
        if step.n_tokens > range.max_tokens {
            return refused("tokens of a step", step.n_tokens, range.max_tokens);
        }
        if self.parallelism.tensor > range.max_devices {
            return refused("tensor parallelism", self.parallelism.tensor, range.max_devices);
        }
        Ok(())
    }
}
