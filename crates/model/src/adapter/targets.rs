//! Linear layers that adapters may change, by the names that transformers gives them, and the positions of
//! their outputs. Does not know adapters.

use crate::arch::hf_layer_names;
use crate::config::{AttentionConfig, DecoderConfig, FeedForward, RopeStyle};

/// A product of the forward pass, of one matrix or of several that are stacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Linear {
    QueryKeyValue,
    AttentionOutput,
    GateUp,
    Down,
}

/// A linear layer as transformers has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) linear: Linear,
    /// Name of the layer within its block (`self_attn.q_proj`).
    pub(super) name: &'static str,
    /// Number of input columns.
    pub(super) cols: usize,
    /// The first column of its output within the product's.
    pub(super) first_col: usize,
    /// Number of output columns.
    pub(super) n_cols: usize,
    /// Heads whose rows the model's file has in another order than transformers: the halves of a head
    /// interleaved.
    pub(super) n_interleaved_heads: Option<usize>,
}

/// The targets of a layer. A stacked layer (`qkv_proj`) and its parts are both listed; an adapter has one or
/// the other. Experts of a mixture are not.
pub(super) fn of_layer(config: &DecoderConfig, layer_idx: usize) -> Vec<Target> {
    let names = hf_layer_names(config);
    let hidden = config.hidden_size;
    let target = |linear, name, cols, first_col, n_cols| Target {
        linear,
        name,
        cols,
        first_col,
        n_cols,
        n_interleaved_heads: None,
    };
    let mut targets = Vec::new();
    let of_input = |name, first_col, n_cols| target(Linear::QueryKeyValue, name, hidden, first_col, n_cols);
    if let Some(attention) = config.layers[layer_idx].attention() {
        let (query, key) = (attention.query_width(), attention.key_width());
        // Converters to GGUF interleave the halves of the heads of Llama's queries and keys, and the model's rotary embedding says
        // so.
        let is_interleaved = attention.rope_style == RopeStyle::Interleaved;
        let heads = |n| is_interleaved.then_some(n);
        targets.extend([
            Target { n_interleaved_heads: heads(attention.n_heads), ..of_input(names.query, 0, query) },
            Target { n_interleaved_heads: heads(attention.n_kv_heads), ..of_input(names.key, query, key) },
            of_input(names.value, query + key, key),
            target(Linear::AttentionOutput, names.attention_output, query, 0, hidden),
        ]);
        if !is_interleaved {
            targets.push(of_input(names.query_key_value, 0, query + 2 * key));
        }
    }
    if let FeedForward::Dense { width } = config.layers[layer_idx].feed_forward {
        targets.extend([
            target(Linear::GateUp, names.gate, hidden, 0, width),
            target(Linear::GateUp, names.up, hidden, width, width),
            target(Linear::GateUp, names.gate_up, hidden, 0, 2 * width),
            target(Linear::Down, names.down, width, 0, hidden),
        ]);
    }
    // Where values are the projections of keys, a change of one product would have to be made in two places.
    let has_own = |target: &Target| {
        let is_key = [names.key, names.value, names.query_key_value].contains(&target.name);
        let shares =
            |attention: &AttentionConfig| attention.kv_layer_idx.is_some() || attention.values_are_keys;
        !(is_key && config.layers[layer_idx].attention().is_some_and(shares))
    };
    targets.retain(|target| !target.name.is_empty() && has_own(target));
    targets
}

/// The rows of `b`, `[n_cols, rank]`, in the order of the model's own weights.
pub(super) fn reordered(target: &Target, b: Vec<f32>, rank: usize) -> Vec<f32> {
    let Some(n_heads) = target.n_interleaved_heads else { return b };
    let head_dim = target.n_cols / n_heads;
    let row = |row_idx: usize| {
        let (head, i) = (row_idx / head_dim, row_idx % head_dim);
        let from = head * head_dim + i % 2 * (head_dim / 2) + i / 2;
        &b[from * rank..][..rank]
    };
    (0..target.n_cols).flat_map(row).copied().collect()
}
