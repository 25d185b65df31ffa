//! Roles of a model's tensors in the forward pass. Does not know how tensors are stored and which operations
//! use them.

use std::collections::HashMap;

use crate::arch::{Architecture, LayerNames};
use crate::config::FeedForward;
use crate::decoder::weights::{encoded_name, find_tensor, has_weight};
use throng_checkpoint::TensorSource;

/// Role of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorRole {
    /// Multiplied by every token of a step.
    Product,
    /// Multiplied by the tokens that need logits; also used as embeddings if both are one table.
    Output,
    /// Multiplied by the tokens that were routed to it: one expert's tensor, or that of all experts of a
    /// layer.
    Expert,
    /// A table of which only rows are looked up.
    Lookup,
    /// A gain or a bias, in 32-bit floats.
    Vector,
}

/// The role of every tensor in `source` that the forward pass reads, by its name in `source`.
pub fn tensor_roles(architecture: &Architecture, source: &dyn TensorSource) -> HashMap<String, TensorRole> {
    let (config, names) = (&architecture.config, architecture.names);
    let mut uses = Uses { source, by_name: HashMap::new() };
    let untied = !config.tied_embeddings && has_weight(source, &format!("{}.weight", names.output));
    uses.weight(names.embedding, if untied { TensorRole::Lookup } else { TensorRole::Output });
    if untied {
        uses.weight(names.output, TensorRole::Output);
        uses.note(&format!("{}.bias", names.output), TensorRole::Vector);
    }
    uses.weight(names.final_norm, TensorRole::Vector);
    uses.note(&format!("{}.bias", names.final_norm), TensorRole::Vector);
    if config.encoder.is_some() {
        uses.weight(names.positions, TensorRole::Lookup);
        uses.weight(names.segments, TensorRole::Lookup);
        uses.norm(names.embedding_norm);
    }
    if config.relative.is_some() {
        uses.weight(names.relative, TensorRole::Vector);
        uses.norm(names.relative_norm);
    }
    if config.per_layer_width.is_some() {
        uses.weight(names.per_layer_embedding, TensorRole::Lookup);
        uses.weight(names.per_layer_projection, TensorRole::Product);
        uses.weight(names.per_layer_norm, TensorRole::Vector);
    }
    for (layer_idx, layer) in config.layers.iter().enumerate() {
        uses.layer(&format!("{}{layer_idx}.", names.layer_prefix), &names.layer, layer.feed_forward);
    }
    uses.by_name
}

struct Uses<'a> {
    source: &'a dyn TensorSource,
    by_name: HashMap<String, TensorRole>,
}

impl Uses<'_> {
    fn weight(&mut self, name: &str, role: TensorRole) {
        self.note(&format!("{name}.weight"), role);
        self.note(&format!("{name}.scale"), TensorRole::Vector);
    }

    fn note(&mut self, name: &str, role: TensorRole) {
        if let Some(tensor) = find_tensor(self.source, name) {
            self.by_name.insert(tensor.name.to_owned(), role);
        } else if let Some(name) = encoded_name(self.source, name) {
            self.by_name.insert(name, role);
        }
    }

    /// Notes the gain and bias of a norm.
    fn norm(&mut self, name: &str) {
        for end in ["weight", "bias", "gamma", "beta"] {
            self.note(&format!("{name}.{end}"), TensorRole::Vector);
        }
    }

    /// Notes the weights under the names that this kind of file uses.
    fn weights(&mut self, prefix: &str, names: &[&str], role: TensorRole) {
        for name in names.iter().filter(|name| !name.is_empty()) {
            self.weight(&format!("{prefix}{name}"), role);
        }
    }

    fn linears(&mut self, prefix: &str, names: &[&str]) {
        self.weights(prefix, names, TensorRole::Product);
        for name in names.iter().filter(|name| !name.is_empty()) {
            self.note(&format!("{prefix}{name}.bias"), TensorRole::Vector);
        }
    }

    fn layer(&mut self, prefix: &str, names: &LayerNames, feed_forward: FeedForward) {
        let before = [names.pre_attention_norm, names.pre_feed_forward_norm];
        let after = [names.post_attention_norm, names.post_feed_forward_norm];
        for name in [before, after].concat().into_iter().filter(|name| !name.is_empty()) {
            self.norm(&format!("{prefix}{name}"));
        }
        self.attention(prefix, names);
        self.recurrent(prefix, names);
        match feed_forward {
            FeedForward::None => {}
            FeedForward::Dense { .. } => {
                self.linears(prefix, &[names.gate, names.up, names.gate_up, names.up_gate, names.down]);
            }
            FeedForward::Experts { n_experts, .. } => self.experts(prefix, names, n_experts),
        }
        self.weights(prefix, &[names.per_layer_gate, names.per_layer_projection], TensorRole::Product);
        self.weights(prefix, &[names.per_layer_post_norm, names.scalar], TensorRole::Vector);
        self.note(&format!("{prefix}{}", names.scalar), TensorRole::Vector);
    }

    fn attention(&mut self, prefix: &str, names: &LayerNames) {
        let heads = [names.query_norm, names.key_norm];
        let compressed = [names.query_compression_norm, names.key_value_compression_norm];
        self.weights(prefix, &[heads, compressed].concat(), TensorRole::Vector);
        self.linears(prefix, &[names.query, names.key, names.value, names.query_key_value]);
        self.linears(prefix, &[names.attention_output, names.attention_gate]);
        self.linears(prefix, &[names.relative_query, names.relative_key]);
        self.linears(prefix, &[names.index_query, names.index_key, names.index_weights]);
        for name in [names.index_key_norm].into_iter().filter(|name| !name.is_empty()) {
            self.norm(&format!("{prefix}{name}"));
        }
        self.linears(prefix, &[names.query_compression, names.query_expansion]);
        self.linears(prefix, &[names.key_value_compression, names.key_value_expansion]);
        self.linears(prefix, &[names.key_expansion, names.value_expansion]);
        self.note(&format!("{prefix}{}", names.sinks), TensorRole::Vector);
    }

    fn recurrent(&mut self, prefix: &str, names: &LayerNames) {
        let recurrent = &names.recurrent;
        self.linears(prefix, &[recurrent.input, recurrent.output, recurrent.delta_gate]);
        self.linears(prefix, &[recurrent.delta_strength, recurrent.delta_time]);
        self.linears(prefix, &[recurrent.delta_by_head, recurrent.gates_by_head]);
        self.weights(prefix, &[recurrent.conv, recurrent.norm], TensorRole::Vector);
        for name in [recurrent.decay, recurrent.time_bias, recurrent.skip] {
            self.note(&format!("{prefix}{name}"), TensorRole::Vector);
        }
        self.note(&format!("{prefix}{}.bias", recurrent.conv), TensorRole::Vector);
    }

    fn experts(&mut self, prefix: &str, names: &LayerNames, n_experts: usize) {
        self.weights(prefix, &[names.latent_down, names.latent_up], TensorRole::Product);
        self.linears(prefix, &[names.router, names.shared_router]);
        for name in [names.router_bias, names.router_scale, names.expert_scales] {
            self.note(&format!("{prefix}{name}"), TensorRole::Vector);
        }
        let norms = [names.pre_experts_norm, names.post_experts_norm, names.post_shared_norm];
        self.weights(prefix, &norms, TensorRole::Vector);
        let shared = [names.shared_gate, names.shared_up, names.shared_gate_up, names.shared_down];
        self.linears(prefix, &shared);
        let stacked = [names.experts_gate, names.experts_up, names.experts_down];
        self.weights(prefix, &stacked, TensorRole::Expert);
        for name in [names.experts_gate_up, names.experts_down] {
            self.note(&format!("{prefix}{name}"), TensorRole::Expert);
            self.note(&format!("{prefix}{name}_bias"), TensorRole::Vector);
        }
        for name in stacked {
            self.note(&format!("{prefix}{name}.bias"), TensorRole::Vector);
        }
        for expert_idx in 0..n_experts {
            let alone = [names.expert_gate, names.expert_up, names.expert_down];
            let alone = alone.map(|name| name.replace("{}", &expert_idx.to_string()));
            self.weights(prefix, &alone.each_ref().map(String::as_str), TensorRole::Expert);
        }
    }
}
