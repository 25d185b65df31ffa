//! An architecture as a value: everything the one forward pass needs to know of a model. Does not know file
//! formats and how their keys are spelled.

mod mixer;
mod relative;
mod rope;
mod shard;
mod stage;

use throng_kernels::reference::AttentionShape;
pub use throng_kernels::reference::RopeStyle;
pub use throng_kernels::rows::Activation;

pub use mixer::{
    AttentionConfig, DeltaShape, HybridConfig, IndexerConfig, LatentConfig, Mixer, QkNorm, StateSpaceShape,
};
pub use relative::{RelativeKind, RelativePositions};
pub use rope::{RopeGrowth, RopeTable, ShortRope};
pub use shard::{HeadSplit, LayerSplit, ShardBlocks, ShardError, Split};
pub use stage::{Stage, StageError};

/// A transformer: a decoder, or an encoder, whose tokens attend to each other in both directions.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// The family, as `model_type` of a `config.json` spells it.
    pub family: &'static str,
    /// Number of rows of the embedding table; token ids are below it.
    pub vocabulary_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Maximum number of tokens of one sequence.
    pub max_sequence_tokens: usize,
    /// Epsilon that is added to the mean square in every norm.
    pub norm_eps: f32,
    /// Epsilon in the norms after mixers and feed-forwards.
    pub post_norm_eps: f32,
    /// Number added to every stored norm gain (Gemma stores gain − 1 in safetensors).
    pub norm_gain_offset: f32,
    /// Number added to the stored gain of the norm before the logits.
    pub final_norm_gain_offset: f32,
    /// Factor of the embeddings.
    pub embedding_scale: f32,
    /// Whether an RMS norm without a gain is applied to the embeddings.
    pub normalizes_embeddings: bool,
    /// Embeddings that an encoder adds, and the norm after it; `None` without them.
    pub encoder: Option<EncoderEmbedding>,
    /// Scores of attention by the distance of two tokens, of an encoder; `None` without them.
    pub relative: Option<RelativePositions>,
    /// Kind of the norms of rows.
    pub norm_kind: NormKind,
    /// Whether there is a norm after the last layer.
    pub has_final_norm: bool,
    /// Whether the first layer's mixer has no norm before it (ModernBERT norms embeddings instead).
    pub lacks_first_norm: bool,
    /// Whether the feed-forward block of a layer reads the residual stream before the mixer has changed it,
    /// through the same norm, so that both are added to it (Cohere). There are no norms after blocks then,
    /// and `residual_scale` is 1.
    pub is_parallel: bool,
    /// Whether feed-forward networks have gates.
    pub has_gates: bool,
    /// Elements of further embeddings of each token for each layer (Gemma 3n and 4); `None` without them.
    pub per_layer_width: Option<usize>,
    /// Whether the residual stream is multiplied with a stored factor after each layer.
    pub has_layer_scalars: bool,
    /// Factor on the output of a layer that is added to the residual stream.
    pub residual_scale: f32,
    /// Factor of the logits.
    pub logits_scale: f32,
    /// Caps the logits: `cap * tanh(x / cap)`.
    pub logits_softcap: Option<f32>,
    /// Norms around mixer and feed-forward.
    pub norms: NormPlacement,
    /// Factors of the gates of dense feed-forward networks before their activation, and of their results.
    pub mlp_scales: [f32; 2],
    /// The feed-forward's activation.
    pub activation: Activation,
    /// Width of the vector that routed experts work on, between a projection to it and one back; where
    /// absent, they work on the residual stream.
    pub expert_size: Option<usize>,
    /// The distinct rotary embeddings; layers name them by index.
    pub ropes: Vec<RopeTable>,
    /// Whether the tokens of a picture attend to each other in both directions.
    pub joins_pictures: bool,
    /// Whether the embedding table is also the output projection.
    pub tied_embeddings: bool,
    /// Layers of the decoder, in order.
    pub layers: Vec<LayerConfig>,
    /// Part of a divided decoder; `None` for a whole one.
    pub split: Option<Split>,
}

/// Embeddings that an encoder adds to those of tokens before it norms them (arXiv:1810.04805).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderEmbedding {
    /// Learned embeddings of positions; none where they are rotated.
    pub positions: Option<LearnedPositions>,
    /// Segments that a token may be of, each with an embedding; 0: there are no such embeddings. A token of
    /// segment `s` has the id `token + s * vocabulary_size`.
    pub n_segments: usize,
}

/// A table of embeddings of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnedPositions {
    /// Number of rows.
    pub n_rows: usize,
    /// The row of position 0.
    pub first_row: usize,
}

impl DecoderConfig {
    /// A Llama without layers and sizes, from which every family starts.
    pub fn llama(family: &'static str, norm_eps: f32) -> Self {
        Self {
            family,
            vocabulary_size: 0,
            hidden_size: 0,
            max_sequence_tokens: 0,
            norm_eps,
            post_norm_eps: norm_eps,
            norm_gain_offset: 0.0,
            final_norm_gain_offset: 0.0,
            embedding_scale: 1.0,
            normalizes_embeddings: false,
            encoder: None,
            relative: None,
            norm_kind: NormKind::RootMeanSquare,
            has_final_norm: true,
            lacks_first_norm: false,
            is_parallel: false,
            has_gates: true,
            per_layer_width: None,
            has_layer_scalars: false,
            residual_scale: 1.0,
            logits_scale: 1.0,
            logits_softcap: None,
            norms: NormPlacement::Pre,
            mlp_scales: [1.0; 2],
            activation: Activation::Silu,
            expert_size: None,
            ropes: Vec::new(),
            joins_pictures: false,
            tied_embeddings: false,
            layers: Vec::new(),
            split: None,
        }
    }

    /// Token ids are below this.
    pub fn n_token_ids(&self) -> usize {
        self.vocabulary_size.saturating_mul(self.encoder.map_or(1, |encoder| encoder.n_segments.max(1)))
    }

    /// Whether tokens attend to the tokens after them.
    pub fn is_bidirectional(&self) -> bool {
        self.attentions().any(|attention| attention.is_bidirectional)
    }

    /// Whether each expert of a layer has a factor of its weight.
    pub fn has_expert_scales(&self) -> bool {
        let has = |layer: &LayerConfig| match layer.feed_forward {
            FeedForward::Experts { routing, .. } => routing.has_expert_scales,
            _ => false,
        };
        self.layers.iter().any(has)
    }

    /// Whether a layer has a recurrent state.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|layer| layer.mixer.state(self.hidden_size).is_some())
    }

    /// The attention of each layer that has one.
    pub fn attentions(&self) -> impl Iterator<Item = &AttentionConfig> {
        self.layers.iter().filter_map(LayerConfig::attention)
    }

    /// The attention of each layer that has one, to change it.
    pub fn attentions_mut(&mut self) -> impl Iterator<Item = &mut AttentionConfig> {
        self.layers.iter_mut().filter_map(LayerConfig::attention_mut)
    }

    /// Shapes of the keys and values of each layer that has some of its own, and of the keys of indexers.
    pub fn cache_shapes(&self) -> impl Iterator<Item = AttentionShape> {
        let of_layers = self.layers.iter().filter_map(|layer| layer.mixer.cache_shape());
        of_layers.chain(self.index_shapes())
    }

    /// Shapes of the keys of indexers, in the order of their places in the cache behind those of the layers.
    pub fn index_shapes(&self) -> impl Iterator<Item = AttentionShape> {
        self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Latent(latent) => {
                latent.indexer.filter(|indexer| indexer.cache_idx.is_some()).map(|indexer| indexer.shape())
            }
            _ => None,
        })
    }

    /// Gives each layer with attention a sliding window or none.
    pub fn set_windows(&mut self, window: impl Fn(usize) -> Option<usize>) {
        for (layer_idx, layer) in self.layers.iter_mut().enumerate() {
            if let Some(attention) = layer.attention_mut() {
                attention.sliding_window = window(layer_idx);
            }
        }
    }

    /// Changes the attention of every layer with `change`.
    #[must_use]
    pub fn with_attention(mut self, change: impl Fn(&mut AttentionConfig)) -> Self {
        self.attentions_mut().for_each(change);
        self
    }
}

/// Settings in which layers of one model differ.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerConfig {
    /// Mixer of a token with the tokens before it.
    pub mixer: Mixer,
    /// The feed-forward block of the layer.
    pub feed_forward: FeedForward,
}

impl LayerConfig {
    /// The layer's attention; `None` if it has another mixer.
    pub fn attention(&self) -> Option<&AttentionConfig> {
        match &self.mixer {
            Mixer::Attention(attention) | Mixer::Hybrid(HybridConfig { attention, .. }) => Some(attention),
            _ => None,
        }
    }

    /// The layer's attention, mutable.
    pub fn attention_mut(&mut self) -> Option<&mut AttentionConfig> {
        match &mut self.mixer {
            Mixer::Attention(attention) | Mixer::Hybrid(HybridConfig { attention, .. }) => Some(attention),
            _ => None,
        }
    }
}

/// The feed-forward block of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FeedForward {
    /// The layer has no feed-forward block, only a mixer.
    None,
    /// A gated feed-forward network of this width.
    Dense {
        /// Number of columns of the hidden layer.
        width: usize,
    },
    /// A routed mixture of gated feed-forward networks.
    Experts {
        /// Number of threads.
        n_experts: usize,
        /// Width of one expert.
        width: usize,
        /// Choice and weights of experts.
        routing: Routing,
        /// An expert that every token uses beside them.
        shared: Option<SharedExpert>,
    },
}

/// An expert that every token uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpert {
    /// Columns of the hidden layer.
    pub width: usize,
    /// Whether its output is scaled by the sigmoid of a product with its input.
    pub is_gated: bool,
    /// Whether it, the router and the other experts have norms of their own: the router and the experts read
    /// the residual stream through one each, and there is one after the experts and one after the shared
    /// expert (Gemma 4).
    pub has_norms: bool,
}

/// Choice of experts: those with the `n_used` largest scores, which are also their weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Routing {
    /// Number of experts of a token.
    pub n_used: usize,
    /// Whether the chosen weights are scaled to the sum 1.
    pub normalize: bool,
    /// Scores of the experts, from router logits.
    pub score: RoutingScore,
    /// Whether each expert has a bias that is added to its score where experts are chosen, and nowhere else
    /// (arXiv:2408.15664).
    pub is_biased: bool,
    /// Factor of the weights after normalization.
    pub scale: f32,
    /// Groups of experts, of which some are chosen first.
    pub groups: Option<RoutingGroups>,
    /// Whether each expert has a factor of its weight.
    pub has_expert_scales: bool,
    /// Whether weights multiply the inputs of the experts instead of their outputs (Llama 4).
    pub scales_inputs: bool,
}

/// Only experts of the best groups may be chosen (arXiv:2405.04434, arXiv:2412.19437).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoutingGroups {
    /// Number of groups, of equal size.
    pub n_groups: usize,
    /// Number of groups that may be chosen from.
    pub n_used: usize,
    /// Number of best experts whose sum is a group's score.
    pub n_summed: usize,
}

/// Scores by the logits of a router.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RoutingScore {
    /// Softmax over all experts.
    Softmax,
    /// The sigmoid of each expert's logit.
    Sigmoid,
    /// SparseMixer (arXiv:2409.12136) without its noise: experts are chosen by their logits, the best first.
    /// The weight of each is its softmax among the experts not chosen before it whose distance to the best
    /// logit `b` is at most `2 * jitter * max(|logit|, b)`. Cannot be combined with biases or groups.
    SparseMixer {
        /// Half of the permitted relative distance.
        jitter: f32,
    },
}

impl Routing {
    /// Scores by softmax over all experts.
    pub fn softmax(n_used: usize, normalize: bool) -> Self {
        Self {
            n_used,
            normalize,
            score: RoutingScore::Softmax,
            is_biased: false,
            scale: 1.0,
            groups: None,
            has_expert_scales: false,
            scales_inputs: false,
        }
    }

    /// Choice of experts, one after the other, by SparseMixer.
    pub fn sparse_mixer(n_used: usize, jitter: f32) -> Self {
        Self { score: RoutingScore::SparseMixer { jitter }, ..Self::softmax(n_used, false) }
    }

    /// Scores by the sigmoid of each expert.
    pub fn sigmoid(n_used: usize, is_biased: bool) -> Self {
        Self { score: RoutingScore::Sigmoid, is_biased, ..Self::softmax(n_used, true) }
    }
}

/// Norms around mixer and feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlacement {
    /// Norm before each block (Llama).
    Pre,
    /// Norm after each block, before its result joins the residual stream (OLMo 2).
    Post,
    /// Norms before and after each block (Gemma 2).
    PreAndPost,
    /// Norm of the residual stream after the block's result was added (BERT, arXiv:1706.03762).
    PostSum,
}

/// Kind of the norms of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// Root mean square (arXiv:1910.07467).
    RootMeanSquare,
    /// Mean and variance (arXiv:1607.06450), with a bias if the file has one.
    Layer,
}

impl NormPlacement {
    /// Whether there is one before.
    pub fn has_pre(self) -> bool {
        matches!(self, Self::Pre | Self::PreAndPost)
    }

    /// Whether there is one after.
    pub fn has_post(self) -> bool {
        self != Self::Pre
    }
}
