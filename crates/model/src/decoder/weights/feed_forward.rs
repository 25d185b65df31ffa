//! The tensors of feed-forward blocks: networks, routers and related tensors. Does not know how experts are
//! stored.

use super::{ExpertNorms, ExpertsWeights, FeedForwardWeights, Loader, SharedExpert, TensorError, weight};
use crate::backend::{Backend, GatedMlp, Linear, MatrixRole};
use crate::config::{self, FeedForward};
use throng_checkpoint::TensorView;

impl<B: Backend> Loader<'_, B> {
    pub(super) fn feed_forward(
        &mut self,
        layer: &str,
        layer_idx: usize,
    ) -> Result<FeedForwardWeights<B>, TensorError> {
        let (hidden, names) = (self.config.hidden_size, self.names);
        let at = |name: &str| format!("{layer}{name}");
        match self.config.layers[layer_idx].feed_forward {
            FeedForward::None => Ok(FeedForwardWeights::None),
            FeedForward::Dense { width } if !names.up_gate.is_empty() => {
                let mlp = self.up_gate_mlp(&at(names.up_gate), &at(names.down), width)?;
                Ok(FeedForwardWeights::Dense(mlp))
            }
            FeedForward::Dense { width } => Ok(FeedForwardWeights::Dense(
                self.gated_mlp([names.gate, names.up, names.gate_up, names.down].map(at), width)?,
            )),
            FeedForward::Experts { n_experts, width, routing, shared } => {
                let router = self.linear(MatrixRole::Router, &[(&at(names.router), n_experts)], hidden)?;
                let bias = || self.row(&at(names.router_bias), n_experts);
                let router_bias = routing.is_biased.then(bias).transpose()?;
                let latent = self.config.expert_size.map(|size| self.latent(layer, size)).transpose()?;
                let experts = self.experts(layer, n_experts, width)?;
                let experts = self.backend.experts(experts)?;
                let shared = shared.map(|shared| self.shared_expert(layer, shared)).transpose()?;
                let scales = || self.vector(&at(names.expert_scales), n_experts);
                let scales = routing.has_expert_scales.then(scales).transpose()?;
                let experts = ExpertsWeights { router, router_bias, latent, scales, experts, shared };
                Ok(FeedForwardWeights::Experts(experts))
            }
        }
    }

    /// The projections to the experts' input, and back.
    fn latent(&mut self, layer: &str, size: usize) -> Result<[B::Matrix; 2], TensorError> {
        let (hidden, names) = (self.config.hidden_size, self.names);
        let at = |name: &str| format!("{layer}{name}");
        Ok([
            self.matrix(MatrixRole::Router, &[(&at(names.latent_down), size)], hidden)?,
            self.matrix(MatrixRole::Router, &[(&at(names.latent_up), hidden)], size)?,
        ])
    }

    fn shared_expert(
        &mut self,
        layer: &str,
        shape: config::SharedExpert,
    ) -> Result<SharedExpert<B>, TensorError> {
        let names = self.names;
        let at = |name: &str| format!("{layer}{name}");
        let hidden = self.config.hidden_size;
        let gate = || self.matrix(MatrixRole::Router, &[(&at(names.shared_router), 1)], hidden);
        let router = shape.is_gated.then(gate).transpose()?;
        let mlp = [names.shared_gate, names.shared_up, names.shared_gate_up, names.shared_down].map(at);
        let norms = shape.has_norms.then(|| self.expert_norms(layer)).transpose()?;
        Ok(SharedExpert { norms, router, mlp: self.gated_mlp(mlp, shape.width)? })
    }

    /// The gain of the router's norm is stored as a factor of a plain norm's result, which is also divided by
    /// the root of its width.
    fn expert_norms(&mut self, layer: &str) -> Result<ExpertNorms<B>, TensorError> {
        let (hidden, names) = (self.config.hidden_size, self.names);
        let at = |name: &str| format!("{layer}{name}");
        let tensor = self.checked(&at(names.router_scale), &[hidden])?;
        let mut router = tensor.numbers();
        let share = 1.0 / (hidden as f32).sqrt();
        router.iter_mut().for_each(|gain| *gain *= share);
        Ok(ExpertNorms {
            router: self.backend.vector(&router)?,
            before_experts: self.norm(&at(names.pre_experts_norm), hidden)?,
            after_experts: self.norm(&at(names.post_experts_norm), hidden)?,
            after_shared: self.norm(&at(names.post_shared_norm), hidden)?,
        })
    }

    /// A network whose file has the rows of up before those of gate in one tensor, without biases.
    fn up_gate_mlp(&mut self, up_gate: &str, down: &str, width: usize) -> Result<GatedMlp<B>, TensorError> {
        let hidden = self.config.hidden_size;
        let stored = self.stored(&weight(up_gate), [2 * width, hidden])?;
        let whole = stored.view();
        let (up, gate) = whole.data.split_at(whole.data.len() / 2);
        let shape = [width, hidden];
        let part = |data| TensorView { shape: &shape, data, ..whole.clone() };
        let gate_up = self.make(MatrixRole::GateUp, &[part(gate), part(up)])?;
        self.note(stored.n_stored_bytes);
        let down = self.linear(MatrixRole::RowParallel, &[(down, hidden)], width)?;
        Ok(GatedMlp { width, gate_up: Linear { weight: gate_up, bias: None }, down })
    }

    /// `names` are those of gate, up, both stacked, and down.
    fn gated_mlp(&mut self, names: [String; 4], width: usize) -> Result<GatedMlp<B>, TensorError> {
        let [gate, up, gate_up, down] = &names;
        let hidden = self.config.hidden_size;
        if !self.config.has_gates {
            let gate_up = self.linear(MatrixRole::GateUp, &[(up, width)], hidden)?;
            let down = self.linear(MatrixRole::RowParallel, &[(down, hidden)], width)?;
            return Ok(GatedMlp { width, gate_up, down });
        }
        let stacked = !self.has(&weight(gate)) && self.has(&weight(gate_up));
        let gate_up = match stacked {
            true => self.linear(MatrixRole::GateUp, &[(gate_up, 2 * width)], hidden)?,
            false => self.linear(MatrixRole::GateUp, &[(gate, width), (up, width)], hidden)?,
        };
        let down = self.linear(MatrixRole::RowParallel, &[(down, hidden)], width)?;
        Ok(GatedMlp { width, gate_up, down })
    }
}
