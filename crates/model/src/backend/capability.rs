//! Capabilities that a device may have beyond those that a Llama needs, and which of them a decoder needs.
//! Does not know which devices there are.

use std::collections::BTreeSet;
use std::fmt;

use crate::config::{
    Activation, AttentionConfig, DecoderConfig, FeedForward, LayerConfig, Mixer, NormKind, QkNorm,
    SharedExpert,
};

/// A capability that not every decoder needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Capability {
    /// Norms with a bias in [`norm_rows`](super::DeviceOps::norm_rows).
    LayerNorm,
    /// [`norm_columns`](super::DeviceOps::norm_columns).
    ColumnNorm,
    /// [`scale_and_cap`](super::DeviceOps::scale_and_cap) and
    /// [`scale_columns`](super::DeviceOps::scale_columns).
    ScaleAndCap,
    /// [`copy_columns`](super::DeviceOps::copy_columns).
    ColumnCopy,
    /// [`gate_columns`](super::DeviceOps::gate_columns).
    ColumnGate,
    /// [`gate_rows`](super::DeviceOps::gate_rows).
    RowGate,
    /// Feed-forward networks without gates.
    UngatedMlp,
    /// Activations other than SiLU.
    OtherActivation,
    /// Attention within a sliding window.
    Window,
    /// Attention within chunks.
    Chunk,
    /// Attention with sinks.
    Sinks,
    /// Capped attention scores.
    ScoreCap,
    /// Attention in both directions.
    Bidirectional,
    /// [`relative_attention`](super::DeviceOps::relative_attention) and
    /// [`matmul_heads`](super::DeviceOps::matmul_heads).
    RelativeAttention,
    /// Attention whose values are elements of the keys, and [`matmul_heads`](super::DeviceOps::matmul_heads).
    LatentAttention,
    /// [`choose_positions`](super::DeviceOps::choose_positions) and
    /// [`attention_at`](super::DeviceOps::attention_at).
    ChosenPositions,
    /// [`mixture_of_experts`](super::DeviceOps::mixture_of_experts).
    Experts,
    /// [`short_conv`](super::RecurrentOps::short_conv).
    ShortConv,
    /// [`gated_delta_net`](super::RecurrentOps::gated_delta_net).
    GatedDelta,
    /// [`state_space`](super::RecurrentOps::state_space).
    StateSpace,
    /// [`overwrite_rows`](super::DeviceOps::overwrite_rows) and [`add_rows`](super::DeviceOps::add_rows);
    /// needed by pictures, not by a decoder.
    Features,
    /// [`add_low_rank`](super::DeviceOps::add_low_rank); needed by adapters, not by a decoder.
    Adapters,
    /// [`embed_part`](super::DeviceOps::embed_part), [`gather_columns`](super::DeviceOps::gather_columns) and
    /// [`norm_split_columns`](super::DeviceOps::norm_split_columns).
    Parts,
}

impl Capability {
    /// Capabilities that a decoder needs.
    pub fn needed_by(config: &DecoderConfig) -> BTreeSet<Self> {
        let scales = config.logits_scale != 1.0
            || config.logits_softcap.is_some()
            || config.has_layer_scalars
            || config.mlp_scales != [1.0; 2];
        let has_rows_per_layer = config.per_layer_width.is_some();
        let of_decoder = [
            (Self::LayerNorm, config.norm_kind == NormKind::Layer),
            (Self::RelativeAttention, config.relative.is_some()),
            (Self::ColumnNorm, config.normalizes_embeddings || has_rows_per_layer),
            (Self::ScaleAndCap, scales || has_rows_per_layer),
            (Self::ColumnCopy, has_rows_per_layer),
            (Self::UngatedMlp, !config.has_gates),
            (Self::OtherActivation, config.activation != Activation::Silu),
            (Self::Parts, config.split.is_some()),
        ];
        let mut needed = BTreeSet::new();
        note(&mut needed, of_decoder);
        for layer in &config.layers {
            note_layer(&mut needed, layer);
        }
        needed
    }

    /// Default body of an operation that needs the capability:
    /// [`Backend::supports`](super::Backend::supports) has reported that the device lacks it.
    pub(super) fn is_missing(self) -> ! {
        panic!("the device has no {self}, which it is asked before a model is loaded")
    }
}

fn note<const N: usize>(needed: &mut BTreeSet<Capability>, capabilities: [(Capability, bool); N]) {
    needed.extend(
        capabilities.into_iter().filter(|&(_, is_needed)| is_needed).map(|(capability, _)| capability),
    );
}

fn note_layer(needed: &mut BTreeSet<Capability>, layer: &LayerConfig) {
    if let FeedForward::Experts { shared, .. } = layer.feed_forward {
        let is = |of: fn(&SharedExpert) -> bool| shared.as_ref().is_some_and(of);
        let of_experts = [
            (Capability::Experts, true),
            (Capability::RowGate, is(|shared| shared.is_gated)),
            (Capability::ColumnNorm, is(|shared| shared.has_norms)),
        ];
        note(needed, of_experts);
    }
    match &layer.mixer {
        Mixer::Attention(attention) => note_attention(needed, attention),
        Mixer::Latent(latent) => {
            note(
                needed,
                [
                    (Capability::ChosenPositions, latent.indexer.is_some()),
                    (Capability::LayerNorm, latent.indexer.is_some()),
                ],
            );
            needed.extend([Capability::LatentAttention, Capability::ColumnNorm, Capability::ColumnCopy]);
        }
        Mixer::ShortConv { .. } => note(needed, [(Capability::ShortConv, true)]),
        Mixer::GatedDelta(_) => note(needed, [(Capability::GatedDelta, true)]),
        Mixer::StateSpace(_) => note(needed, [(Capability::StateSpace, true)]),
        Mixer::Hybrid(hybrid) => {
            needed.extend([Capability::StateSpace, Capability::ScaleAndCap]);
            note_attention(needed, &hybrid.attention);
        }
        Mixer::None => {}
    }
}

fn note_attention(needed: &mut BTreeSet<Capability>, attention: &AttentionConfig) {
    let norms_heads = attention.qk_norm != QkNorm::None || attention.normalizes_values;
    let of_attention = [
        (Capability::ColumnNorm, norms_heads),
        (Capability::LayerNorm, attention.qk_norm == QkNorm::LayerPerHead),
        (Capability::ColumnGate, attention.has_output_gate || attention.is_gated),
        (Capability::Window, attention.sliding_window.is_some()),
        (Capability::Chunk, attention.chunk.is_some()),
        (Capability::Sinks, attention.has_sinks),
        (Capability::ScoreCap, attention.softcap.is_some()),
        (Capability::Bidirectional, attention.is_bidirectional),
    ];
    note(needed, of_attention);
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LayerNorm => "layer norms",
            Self::ColumnNorm => "norms of columns",
            Self::ScaleAndCap => "scaling and caps",
            Self::ColumnCopy => "copies of columns",
            Self::ColumnGate => "gates of columns",
            Self::RowGate => "gates of rows",
            Self::UngatedMlp => "feed-forward networks without gates",
            Self::OtherActivation => "activations other than SiLU",
            Self::Window => "sliding windows",
            Self::Chunk => "chunked attention",
            Self::Sinks => "attention sinks",
            Self::ScoreCap => "capped attention scores",
            Self::Bidirectional => "attention in both directions",
            Self::RelativeAttention => "attention by distance",
            Self::LatentAttention => "latent attention",
            Self::ChosenPositions => "attention over chosen positions",
            Self::Experts => "mixtures of experts",
            Self::ShortConv => "short convolutions",
            Self::GatedDelta => "gated delta nets",
            Self::StateSpace => "state space models",
            Self::Features => "features in place of embeddings",
            Self::Adapters => "adapters",
            Self::Parts => "parts of layers",
        })
    }
}
