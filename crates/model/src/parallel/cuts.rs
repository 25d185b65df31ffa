//! The part of each tensor that a device has. Does not know bytes.

use std::collections::HashMap;
use std::ops::Range;

use super::cut::Cut;
use crate::arch::{Architecture, LayerNames, TensorNames};
use crate::config::{
    AttentionConfig, DecoderConfig, DeltaShape, FeedForward, HeadSplit, LatentConfig, LayerConfig,
    LayerSplit, Mixer, QkNorm, Split, StateSpaceShape,
};
use crate::decoder::weights::{encoded_name, find_byte_tensor, find_tensor};
use throng_checkpoint::TensorSource;

/// The part of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TensorPart {
    /// The tensor is on another device.
    Absent,
    /// Ranges of the tensor.
    Cut(Cut),
}

/// Parts of the tensors of one device, by their names in the source; tensors without an entry are whole.
pub(super) struct Cuts<'a> {
    source: &'a dyn TensorSource,
    /// Index of the device.
    rank: usize,
    pub(super) by_name: HashMap<String, TensorPart>,
}

/// MXFP4's elements of a scale.
const SCALED: usize = 32;

impl<'a> Cuts<'a> {
    /// `whole` is the architecture before it was divided.
    pub(super) fn new(
        whole: &DecoderConfig,
        split: &Split,
        names: &TensorNames,
        source: &'a dyn TensorSource,
    ) -> Self {
        let mut cuts = Self { source, rank: split.rank, by_name: HashMap::new() };
        let vocabulary = [split.vocabulary()];
        cuts.rows(names.embedding, &vocabulary);
        if names.output != names.embedding {
            cuts.rows(names.output, &vocabulary);
        }
        for (layer_idx, (layer, split)) in whole.layers.iter().zip(&split.layers).enumerate() {
            let prefix = format!("{}{layer_idx}.", names.layer_prefix);
            let layer_cuts = LayerCuts { prefix: &prefix, names: &names.layer, split };
            cuts.mixer(&layer_cuts, whole, &layer.mixer);
            cuts.feed_forward(&layer_cuts, layer);
        }
        cuts
    }

    /// Notes the part of a tensor, under its name in the source.
    fn note(&mut self, name: &str, part: TensorPart) {
        if let Some(tensor) = find_tensor(self.source, name) {
            self.by_name.insert(tensor.name.to_owned(), part);
        } else if let Some(tensor) = find_byte_tensor(self.source, name) {
            self.by_name.insert(tensor.name.to_owned(), part);
        } else if let Some(name) = encoded_name(self.source, name) {
            self.by_name.insert(name, part);
        }
    }

    fn along(&mut self, name: &str, axis: usize, ranges: &[Range<usize>]) {
        self.note(name, TensorPart::Cut(Cut { axis, ranges: ranges.to_vec() }));
    }

    /// Rows of a projection, with their biases.
    fn rows(&mut self, name: &str, ranges: &[Range<usize>]) {
        if !name.is_empty() {
            self.along(&format!("{name}.weight"), 0, ranges);
            self.along(&format!("{name}.bias"), 0, ranges);
        }
    }

    /// Columns of a projection whose products are summed over devices; the first one adds the bias.
    fn columns(&mut self, name: &str, ranges: &[Range<usize>]) {
        self.along(&format!("{name}.weight"), 1, ranges);
        self.first_only(&format!("{name}.bias"));
    }

    fn first_only(&mut self, name: &str) {
        if self.rank > 0 {
            self.note(name, TensorPart::Absent);
        }
    }

    fn mixer(&mut self, layer: &LayerCuts<'_>, whole: &DecoderConfig, mixer: &Mixer) {
        match mixer {
            Mixer::None => {}
            Mixer::Attention(attention) => self.attention(layer, attention),
            Mixer::Latent(latent) => self.latent(layer, latent),
            Mixer::ShortConv { .. } => {
                let channels = &layer.split.states.heads;
                let hidden = whole.hidden_size;
                let names = &layer.names.recurrent;
                self.rows(&layer.at(names.input), &[0, 1, 2].map(|i| shifted(channels, i * hidden)));
                self.rows(&layer.at(names.conv), std::slice::from_ref(channels));
                self.columns(&layer.at(names.output), std::slice::from_ref(channels));
            }
            Mixer::GatedDelta(shape) => self.delta_net(layer, shape),
            Mixer::StateSpace(shape) => self.state_space(layer, shape),
            Mixer::Hybrid(hybrid) => {
                self.attention(layer, &hybrid.attention);
                self.state_space(layer, &hybrid.state_space);
            }
        }
    }

    fn attention(&mut self, layer: &LayerCuts<'_>, attention: &AttentionConfig) {
        let names = layer.names;
        let HeadSplit { heads, groups, .. } = &layer.split.attention;
        let &AttentionConfig { head_dim, .. } = attention;
        let (queries, keys) = (times(heads, head_dim), times(groups, head_dim));
        let per_head = if attention.has_output_gate { 2 * head_dim } else { head_dim };
        self.rows(&layer.at(names.query), &[times(heads, per_head)]);
        for name in [names.key, names.value] {
            self.rows(&layer.at(name), std::slice::from_ref(&keys));
        }
        let (n_queries, n_keys) = (attention.query_width(), attention.key_width());
        let stacked = [queries.clone(), shifted(&keys, n_queries), shifted(&keys, n_queries + n_keys)];
        if !names.query_key_value.is_empty() {
            self.rows(&layer.at(names.query_key_value), &stacked);
        }
        if attention.is_gated {
            self.rows(&layer.at(names.attention_gate), std::slice::from_ref(&queries));
        }
        self.columns(&layer.at(names.attention_output), std::slice::from_ref(&queries));
        self.along(&layer.at(names.sinks), 0, std::slice::from_ref(heads));
        let gains = match attention.qk_norm {
            QkNorm::WholeWidth => [queries, keys],
            QkNorm::LayerPerHead => [heads.clone(), groups.clone()],
            _ => return,
        };
        for (name, range) in [names.query_norm, names.key_norm].into_iter().zip(gains) {
            self.along(&format!("{}.weight", layer.at(name)), 0, &[range]);
        }
    }

    fn latent(&mut self, layer: &LayerCuts<'_>, latent: &LatentConfig) {
        let (names, heads) = (layer.names, &layer.split.attention.heads);
        let query = times(heads, latent.nope_dim + latent.rope_dim);
        let name = if latent.query_rank.is_some() { names.query_expansion } else { names.query };
        self.rows(&layer.at(name), &[query]);
        self.rows(&layer.at(names.key_value_expansion), &[times(heads, latent.nope_dim + latent.value_dim)]);
        for name in [names.key_expansion, names.value_expansion].into_iter().filter(|name| !name.is_empty()) {
            self.rows(&layer.at(name), std::slice::from_ref(heads));
        }
        self.columns(&layer.at(names.attention_output), &[times(heads, latent.value_dim)]);
    }

    fn delta_net(&mut self, layer: &LayerCuts<'_>, shape: &DeltaShape) {
        let (names, split) = (&layer.names.recurrent, &layer.split.states);
        let of_key = shape.n_value_heads / shape.n_key_heads;
        let keys = times(&split.groups, shape.key_dim);
        // Heads of values of one of keys are adjacent, or one in each tile.
        let values = |width: usize| -> Vec<Range<usize>> {
            match shape.is_tiled {
                false => vec![times(&split.heads, width)],
                true => {
                    let tile = |tile: usize| shifted(&split.groups, tile * shape.n_key_heads);
                    (0..of_key).map(|idx| times(&tile(idx), width)).collect()
                }
            }
        };
        let value_rows = values(shape.value_dim);
        let after_keys = value_rows.iter().map(|range| shifted(range, 2 * shape.key_width()));
        let channels: Vec<_> =
            [keys.clone(), shifted(&keys, shape.key_width())].into_iter().chain(after_keys).collect();
        self.rows(&layer.at(names.input), &channels);
        self.rows(&layer.at(names.conv), &channels);
        self.rows(&layer.at(names.delta_gate), &value_rows);
        let heads = values(1);
        for name in [names.delta_strength, names.delta_time] {
            self.rows(&layer.at(name), &heads);
        }
        for name in [names.decay, names.time_bias] {
            self.along(&layer.at(name), 0, &heads);
        }
        let of_head = 2 * shape.key_dim + 2 * of_key * shape.value_dim;
        if !names.delta_by_head.is_empty() {
            self.rows(&layer.at(names.delta_by_head), &[times(&split.groups, of_head)]);
            self.rows(&layer.at(names.gates_by_head), &[times(&split.groups, 2 * of_key)]);
        }
        self.columns(&layer.at(names.output), &value_rows);
    }

    fn state_space(&mut self, layer: &LayerCuts<'_>, shape: &StateSpaceShape) {
        let (names, split) = (&layer.names.recurrent, &layer.split.states);
        let (width, of_groups) = (shape.width(), shape.n_groups * shape.state_dim);
        let columns = times(&split.heads, shape.head_dim);
        let groups = times(&split.groups, shape.state_dim);
        let channels = [columns.clone(), shifted(&groups, width), shifted(&groups, width + of_groups)];
        let input: Vec<_> = std::iter::once(columns.clone())
            .chain(channels.iter().map(|range| shifted(range, width)))
            .chain([shifted(&split.heads, width + shape.n_channels())])
            .collect();
        self.rows(&layer.at(names.input), &input);
        self.rows(&layer.at(names.conv), &channels);
        for name in [names.decay, names.time_bias, names.skip] {
            self.along(&layer.at(name), 0, std::slice::from_ref(&split.heads));
        }
        self.along(&format!("{}.weight", layer.at(names.norm)), 0, std::slice::from_ref(&columns));
        self.columns(&layer.at(names.output), &[columns]);
    }

    fn feed_forward(&mut self, layer: &LayerCuts<'_>, config: &LayerConfig) {
        let names = layer.names;
        let columns = &layer.split.feed_forward;
        match config.feed_forward {
            FeedForward::None => {}
            FeedForward::Dense { width } => {
                self.network([names.gate, names.up, names.gate_up, names.up_gate, names.down], layer, width);
            }
            FeedForward::Experts { n_experts, width, shared, .. } => {
                self.experts(layer, width);
                for expert_idx in 0..n_experts {
                    let at = |name: &str| layer.at(&name.replace("{}", &expert_idx.to_string()));
                    self.rows(&at(names.expert_gate), std::slice::from_ref(columns));
                    self.rows(&at(names.expert_up), std::slice::from_ref(columns));
                    self.columns(&at(names.expert_down), std::slice::from_ref(columns));
                }
                if let Some(shared) = shared {
                    let own = LayerSplit { feed_forward: layer.split.shared.clone(), ..layer.split.clone() };
                    let layer = LayerCuts { split: &own, ..*layer };
                    let all =
                        [names.shared_gate, names.shared_up, names.shared_gate_up, "", names.shared_down];
                    self.network(all, &layer, shared.width);
                }
            }
        }
    }

    /// A gated network: names of gate, up, both stacked in either order, and down.
    fn network(&mut self, names: [&str; 5], layer: &LayerCuts<'_>, width: usize) {
        let [gate, up, gate_up, up_gate, down] = names;
        let columns = &layer.split.feed_forward;
        let both = [columns.clone(), shifted(columns, width)];
        for name in [gate_up, up_gate].into_iter().filter(|name| !name.is_empty()) {
            self.rows(&layer.at(name), &both);
        }
        // GGUF has one name for up and for both stacked.
        let is_stacked = up == gate_up && !self.has(&format!("{}.weight", layer.at(gate)));
        let is_gated_alone = self.n_rows(&format!("{}.weight", layer.at(up))) == Some(2 * width);
        if !(is_stacked && is_gated_alone) {
            self.rows(&layer.at(up), std::slice::from_ref(columns));
        }
        self.rows(&layer.at(gate), std::slice::from_ref(columns));
        self.columns(&layer.at(down), std::slice::from_ref(columns));
    }

    fn has(&self, name: &str) -> bool {
        find_tensor(self.source, name).is_some()
    }

    fn n_rows(&self, name: &str) -> Option<usize> {
        find_tensor(self.source, name)?.shape.first().copied()
    }

    /// Tensors of all experts.
    fn experts(&mut self, layer: &LayerCuts<'_>, width: usize) {
        let (names, columns) = (layer.names, &layer.split.feed_forward);
        let layout = names.experts_layout;
        let both = match layout.is_interleaved {
            true => vec![times(columns, 2)],
            false => vec![columns.clone(), shifted(columns, width)],
        };
        let one = std::slice::from_ref(columns);
        // These matrices are stored with rows and columns exchanged.
        let axis = |cuts: &Self, name: &str, axis: usize| {
            if layout.is_transposed && cuts.has(name) { 3 - axis } else { axis }
        };
        let down = layer.at(names.experts_down);
        if !names.experts_gate_up.is_empty() {
            let name = layer.at(names.experts_gate_up);
            self.along(&name, axis(self, &name, 1), &both);
            self.along(&format!("{name}_bias"), 1, &both);
            self.along(&format!("{name}_blocks"), 1, &both);
            self.along(&format!("{name}_scales"), 1, &both);
            self.along(&down, axis(self, &down, 2), one);
            self.first_only(&format!("{down}_bias"));
            let scales = columns.start / SCALED..columns.end.div_ceil(SCALED);
            self.along(&format!("{down}_blocks"), 2, std::slice::from_ref(&scales));
            self.along(&format!("{down}_scales"), 2, std::slice::from_ref(&scales));
        }
        for name in [names.experts_gate, names.experts_up].into_iter().filter(|name| !name.is_empty()) {
            self.along(&format!("{}.weight", layer.at(name)), 1, one);
            self.along(&format!("{}.bias", layer.at(name)), 1, one);
        }
        if !names.experts_down.is_empty() {
            self.along(&format!("{down}.weight"), 2, one);
            self.first_only(&format!("{down}.bias"));
        }
    }
}

/// A layer's names and the device's part of it.
#[derive(Clone, Copy)]
struct LayerCuts<'a> {
    prefix: &'a str,
    names: &'a LayerNames,
    split: &'a LayerSplit,
}

impl LayerCuts<'_> {
    fn at(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

/// A range of elements that have `width` values each, as a range of values.
fn times(range: &Range<usize>, width: usize) -> Range<usize> {
    range.start * width..range.end * width
}

fn shifted(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}

/// Names of the tensors of a whole architecture whose columns are divided: output projections of mixers, down
/// projections of networks and of shared experts, those of experts.
pub(super) fn divided_by_columns(architecture: &Architecture) -> [Vec<String>; 3] {
    let (config, names) = (&architecture.config, architecture.names);
    let layer_names = &names.layer;
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    for (layer_idx, layer) in config.layers.iter().enumerate() {
        let at = |name: &str| format!("{}{layer_idx}.{name}", names.layer_prefix);
        let weight = |name: &str| format!("{}.weight", at(name));
        all[0].extend([layer_names.attention_output, layer_names.recurrent.output].map(weight));
        all[1].extend([layer_names.down, layer_names.shared_down].map(weight));
        let FeedForward::Experts { n_experts, .. } = layer.feed_forward else { continue };
        let down = layer_names.experts_down;
        all[2].extend([weight(down), at(down), format!("{}_blocks", at(down))]);
        let alone = |idx: usize| weight(&layer_names.expert_down.replace("{}", &idx.to_string()));
        all[2].extend((0..n_experts).map(alone));
    }
    all
}
