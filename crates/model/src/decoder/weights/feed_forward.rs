//! The tensors of feed-forward blocks: one network, or experts one by one or all in one tensor. Does not know attention.

use super::{FeedForwardWeights, Loader, SharedExpert, TensorError, weight};
use crate::backend::{Backend, Expert, GatedMlp, MatrixRole};
use crate::config::{self, FeedForward};
use crate::weights::TensorView;

impl<'a, B: Backend> Loader<'a, B> {
    pub(super) fn feed_forward(
        &mut self,
        layer: &str,
        layer_idx: usize,
    ) -> Result<FeedForwardWeights<B>, TensorError> {
        let (hidden, names) = (self.config.hidden_size, self.names);
        let at = |name: &str| format!("{layer}{name}");
        match self.config.layers[layer_idx].feed_forward {
            FeedForward::None => Ok(FeedForwardWeights::None),
            FeedForward::Dense { width } => Ok(FeedForwardWeights::Dense(
                self.gated_mlp([names.gate, names.up, names.gate_up, names.down].map(at), width)?,
            )),
            FeedForward::Experts { n_experts, width, routing, shared } => {
                let router = self.matrix(MatrixRole::Router, &[(&at(names.router), n_experts)], hidden)?;
                let bias = || self.vector(&at(names.router_bias), n_experts);
                let router_bias = routing.is_biased.then(bias).transpose()?;
                let latent = self.config.expert_size.map(|size| self.latent(layer, size)).transpose()?;
                let experts = self.experts(layer, n_experts, width)?;
                let experts = self.backend.experts(experts)?;
                let shared = shared.map(|shared| self.shared_expert(layer, shared)).transpose()?;
                Ok(FeedForwardWeights::Experts { router, router_bias, latent, experts, shared })
            }
        }
    }

    /// The projections to what experts work on, and back.
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
        Ok(SharedExpert { router, mlp: self.gated_mlp(mlp, shape.width)? })
    }

    /// `names` are those of gate, up, both stacked, and down.
    fn gated_mlp(&mut self, names: [String; 4], width: usize) -> Result<GatedMlp<B>, TensorError> {
        let [gate, up, gate_up, down] = &names;
        let hidden = self.config.hidden_size;
        let stacked = self.find(&weight(gate)).is_none() && self.find(&weight(gate_up)).is_some();
        let gate_up = match stacked {
            true => self.linear(MatrixRole::GateUp, &[(gate_up, 2 * width)], hidden)?,
            false => self.linear(MatrixRole::GateUp, &[(gate, width), (up, width)], hidden)?,
        };
        let down = self.linear(MatrixRole::RowParallel, &[(down, hidden)], width)?;
        Ok(GatedMlp { width, gate_up, down })
    }

    fn experts(
        &mut self,
        layer: &str,
        n_experts: usize,
        width: usize,
    ) -> Result<Vec<Expert<B::Matrix>>, TensorError> {
        let (hidden, names) = (self.config.expert_size.unwrap_or(self.config.hidden_size), self.names);
        let stacked = [names.experts_gate, names.experts_up, names.experts_down];
        let stacked = stacked.map(|name| weight(&format!("{layer}{name}")));
        if !names.experts_gate.is_empty() && self.find(&stacked[0]).is_some() {
            let experts =
                (0..n_experts).map(|idx| self.stacked_expert(&stacked, idx, [n_experts, width, hidden]));
            let experts = experts.collect::<Result<_, _>>()?;
            let stored = stacked.iter().filter_map(|name| self.find(name));
            stored.for_each(|tensor| self.source.release(tensor.name));
            return Ok(experts);
        }
        let expert = |expert_idx: usize| {
            let name = |pattern: &str| format!("{layer}{}", pattern.replace("{}", &expert_idx.to_string()));
            let [gate, up, down] = [names.expert_gate, names.expert_up, names.expert_down].map(name);
            Ok(Expert {
                gate_up: self.matrix(MatrixRole::Expert, &[(&gate, width), (&up, width)], hidden)?,
                down: self.matrix(MatrixRole::Expert, &[(&down, hidden)], width)?,
            })
        };
        (0..n_experts).map(expert).collect()
    }

    /// One expert of tensors that hold all of them: gate, up and down.
    fn stacked_expert(
        &mut self,
        names: &[String; 3],
        expert_idx: usize,
        [n_experts, width, hidden]: [usize; 3],
    ) -> Result<Expert<B::Matrix>, TensorError> {
        let gate = self.slice(&names[0], expert_idx, [n_experts, width, hidden])?;
        let up = self.slice(&names[1], expert_idx, [n_experts, width, hidden])?;
        let down = self.slice(&names[2], expert_idx, [n_experts, hidden, width])?;
        self.note(gate.data.len() + up.data.len() + down.data.len());
        let (up_shape, down_shape) = ([width, hidden], [hidden, width]);
        let gate_up = [gate, up].map(|view| TensorView { shape: &up_shape, ..view });
        let down = TensorView { shape: &down_shape, ..down };
        let role = MatrixRole::Expert;
        Ok(Expert { gate_up: self.make(role, &gate_up)?, down: self.make(role, &[down])? })
    }

    /// One expert's part of a tensor that holds all; its shape is still that of the whole.
    fn slice(&self, name: &str, expert_idx: usize, shape: [usize; 3]) -> Result<TensorView<'a>, TensorError> {
        let tensor = self.checked(name, &shape)?;
        let n_bytes = tensor.data.len() / shape[0];
        Ok(TensorView { data: &tensor.data[expert_idx * n_bytes..][..n_bytes], ..tensor })
    }
}
