//! Mixers: the parts of a layer that mix the tokens of a sequence. Does not know feed-forward blocks and how
//! anything is computed.

use throng_kernels::recurrent::StateLayerShape;
use throng_kernels::reference::{AttentionShape, RopeStyle};
pub use throng_kernels::reference::{DeltaShape, StateSpaceShape};

/// The part of a layer that mixes a token with the tokens before it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mixer {
    /// Softmax attention over keys and values in the KV cache.
    Attention(AttentionConfig),
    /// Multi-head latent attention: keys and values of all heads are computed from one vector a token
    /// (arXiv:2405.04434).
    Latent(LatentConfig),
    /// A gated convolution over the last tokens.
    ShortConv {
        /// Number of tokens, the token itself included.
        kernel: usize,
        /// Number of channels; `None`: the width of the residual stream.
        n_channels: Option<usize>,
    },
    /// A gated delta net.
    GatedDelta(DeltaShape),
    /// A state space model.
    StateSpace(StateSpaceShape),
    /// A state space model and attention side by side.
    Hybrid(HybridConfig),
    /// The layer has no mixer, only a feed-forward block.
    None,
}

/// A state space model and attention that read the same norm of the residual stream (Falcon H1). There are no
/// norms after mixers then, and `residual_scale` is 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HybridConfig {
    /// Attention of the layer.
    pub attention: AttentionConfig,
    /// State space model of the layer.
    pub state_space: StateSpaceShape,
    /// Factors of the parts of the projected input: gates, inputs, writes to and reads from states, times.
    pub input_scales: [f32; 5],
    /// Factor of the state space model's output.
    pub state_scale: f32,
}

impl Mixer {
    /// The recurrent state of a sequence in this mixer; `None` for mixers without state. `hidden` is the
    /// width of the residual stream.
    pub fn state(&self, hidden: usize) -> Option<StateLayerShape> {
        match *self {
            Self::Attention(_) | Self::Latent(_) | Self::None => None,
            Self::ShortConv { kernel, n_channels } => {
                let n_channels = n_channels.unwrap_or(hidden);
                Some(StateLayerShape { n_channels, kernel, ..StateLayerShape::default() })
            }
            Self::GatedDelta(shape) => Some(StateLayerShape {
                n_channels: shape.n_channels(),
                kernel: shape.kernel,
                n_heads: shape.n_value_heads,
                n_key_heads: shape.n_key_heads,
                key_dim: shape.key_dim,
                value_dim: shape.value_dim,
            }),
            Self::StateSpace(shape) | Self::Hybrid(HybridConfig { state_space: shape, .. }) => {
                Some(StateLayerShape {
                    n_channels: shape.n_channels(),
                    kernel: shape.kernel,
                    n_heads: shape.n_heads,
                    n_key_heads: shape.n_groups,
                    key_dim: shape.state_dim,
                    value_dim: shape.head_dim,
                })
            }
        }
    }

    /// Columns of the input of a recurrent mixer and of its output; `None` for another one.
    pub fn recurrent_widths(&self, hidden: usize) -> Option<(usize, usize)> {
        match *self {
            Self::Attention(_) | Self::Latent(_) | Self::None => None,
            Self::ShortConv { n_channels, .. } => {
                let n_channels = n_channels.unwrap_or(hidden);
                Some((3 * n_channels, n_channels))
            }
            Self::GatedDelta(shape) => Some((shape.input_width(), shape.value_width())),
            Self::StateSpace(shape) | Self::Hybrid(HybridConfig { state_space: shape, .. }) => {
                Some((shape.input_width(), shape.width()))
            }
        }
    }

    /// The attention over this layer's own keys and values; `None` where a layer has none.
    pub fn cache_shape(&self) -> Option<AttentionShape> {
        match self {
            Self::Attention(attention) | Self::Hybrid(HybridConfig { attention, .. }) => {
                attention.kv_layer_idx.is_none().then(|| attention.shape())
            }
            Self::Latent(latent) => Some(latent.shape()),
            _ => None,
        }
    }

    /// Maximum number of positions that a token attends to, its own included; all when absent.
    pub fn reach(&self) -> Option<usize> {
        let shape = match self {
            Self::Attention(attention) | Self::Hybrid(HybridConfig { attention, .. }) => attention.shape(),
            Self::Latent(latent) => latent.shape(),
            _ => return None,
        };
        [shape.window, shape.chunk].into_iter().flatten().min()
    }
}

/// Latent attention in its absorbed form: queries are multiplied with the matrices that would make keys of
/// the latent vector, so that the latent vector is key and value of all heads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentConfig {
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of elements of the vector that queries are computed from; `None`: they are computed from the
    /// layer's input.
    pub query_rank: Option<usize>,
    /// Number of elements of the latent vector.
    pub rank: usize,
    /// Number of elements of a head's query that are not rotated.
    pub nope_dim: usize,
    /// Number of rotated elements of a query and of the key that all heads share.
    pub rope_dim: usize,
    /// Number of elements of a head's value.
    pub value_dim: usize,
    /// Factor of the products of queries with keys.
    pub scale: f32,
    /// Epsilon that is added to the mean square in the norms of the vectors that queries, keys and values are
    /// computed from.
    pub norm_eps: f32,
    /// Pairing of elements for rotation.
    pub rope_style: RopeStyle,
    /// The rotary embedding, an index into [`DecoderConfig::ropes`](super::DecoderConfig::ropes).
    pub rope_idx: usize,
    /// Index of the rotary embedding that first scales all elements of queries by position.
    pub growth_rope_idx: Option<usize>,
    /// Choice of the positions that a token attends to; `None`: all before it.
    pub indexer: Option<IndexerConfig>,
}

/// Choice of the positions that a token attends to (DeepSeek sparse attention, arXiv:2512.02556): those with
/// the largest sums over small heads of `weight * max(query · key, 0)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IndexerConfig {
    /// Number of the indexer's heads.
    pub n_heads: usize,
    /// Number of elements of a head's query, and of the key that all share.
    pub head_dim: usize,
    /// Maximum number of positions that a token attends to.
    pub n_chosen: usize,
    /// Epsilon that is added to the variance in the layer norm of keys.
    pub norm_eps: f32,
    /// Pairing of the first elements for rotation, by the rotary embedding of the attention.
    pub rope_style: RopeStyle,
    /// Index of the layer's keys in the cache, behind those of the layers; `None`: the layer uses the choice
    /// of the layer before it.
    pub cache_idx: Option<usize>,
}

impl IndexerConfig {
    /// Shape of its queries and keys.
    pub fn shape(&self) -> AttentionShape {
        let shape = AttentionShape::new(self.n_heads, 1, self.head_dim, 1.0);
        AttentionShape { values_in_keys: Some(0), ..shape }
    }
}

impl LatentConfig {
    /// Elements in the cache for a token: those of the rotated key, then of the latent vector.
    pub fn key_dim(&self) -> usize {
        self.rope_dim + self.rank
    }

    /// Shape for an attention operation.
    pub fn shape(&self) -> AttentionShape {
        let shape = AttentionShape::new(self.n_heads, 1, self.key_dim(), self.scale);
        AttentionShape { values_in_keys: Some(self.rope_dim), ..shape }
    }
}

/// The attention of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionConfig {
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Factor of the products of queries with keys.
    pub scale: f32,
    /// Caps scores: `cap * tanh(x / cap)`.
    pub softcap: Option<f32>,
    /// Factor of the values.
    pub value_scale: f32,
    /// Norm of queries and keys before rotation.
    pub qk_norm: QkNorm,
    /// Pairing of a head's elements for rotation.
    pub rope_style: RopeStyle,
    /// The rotary embedding of queries and keys, an index into
    /// [`DecoderConfig::ropes`](super::DecoderConfig::ropes); `None`: no rotation.
    pub rope_idx: Option<usize>,
    /// Index of the queries' table where it is another one.
    pub query_rope_idx: Option<usize>,
    /// Number of positions that a token attends to, its own included; all when absent.
    pub sliding_window: Option<usize>,
    /// Whether the output is multiplied by the sigmoid of a projection of the input, which is stored with
    /// that of the queries.
    pub has_output_gate: bool,
    /// A token attends to the positions of its own chunk of this size, up to its own; all when absent.
    pub chunk: Option<usize>,
    /// Whether each head has a sink: a further score that has no value.
    pub has_sinks: bool,
    /// Whether values are normed a head at a time, without a gain.
    pub normalizes_values: bool,
    /// Whether values are the projections of keys, before norm and rotation.
    pub values_are_keys: bool,
    /// The earlier layer whose keys and values are read, if the layer has none of its own.
    pub kv_layer_idx: Option<usize>,
    /// Whether the output is multiplied by the sigmoid of a projection of the input, which has a tensor of
    /// its own.
    pub is_gated: bool,
    /// Whether a token also attends to the tokens after it, within the window in either direction.
    pub is_bidirectional: bool,
}

impl AttentionConfig {
    /// The configuration of Llama, with these numbers of heads and this size.
    pub fn llama(n_heads: usize, n_kv_heads: usize, head_dim: usize) -> Self {
        Self {
            n_heads,
            n_kv_heads,
            head_dim,
            scale: (1.0 / (head_dim as f64).sqrt()) as f32,
            softcap: None,
            value_scale: 1.0,
            qk_norm: QkNorm::None,
            rope_style: RopeStyle::HalfSplit,
            rope_idx: Some(0),
            query_rope_idx: None,
            sliding_window: None,
            has_output_gate: false,
            chunk: None,
            has_sinks: false,
            normalizes_values: false,
            values_are_keys: false,
            kv_layer_idx: None,
            is_gated: false,
            is_bidirectional: false,
        }
    }

    /// Shape for an attention operation.
    pub fn shape(&self) -> AttentionShape {
        AttentionShape {
            softcap: self.softcap,
            window: self.sliding_window,
            chunk: self.chunk,
            is_bidirectional: self.is_bidirectional,
            ..AttentionShape::new(self.n_heads, self.n_kv_heads, self.head_dim, self.scale)
        }
    }

    /// Number of columns of all query heads.
    pub fn query_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Columns of all key heads, 0 if another layer's are read; values have the same number.
    pub fn key_width(&self) -> usize {
        if self.kv_layer_idx.is_some() { 0 } else { self.n_kv_heads * self.head_dim }
    }

    /// Columns of queries, keys, values and, where there are some, output gates.
    pub fn qkv_width(&self) -> usize {
        let gates = if self.has_output_gate { self.query_width() } else { 0 };
        self.query_width() + 2 * self.key_width() + gates
    }
}

/// The norm of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// No norm.
    None,
    /// Over each head, one gain for all heads.
    PerHead,
    /// Over all heads together.
    WholeWidth,
    /// Over each head, without a gain.
    Plain,
    /// Over each head without a gain, after rotation.
    PlainAfterRope,
    /// Mean and variance over each head, each with a gain of its own (Command R+).
    LayerPerHead,
    /// Over each head, one gain for all heads, after rotation (Hunyuan).
    PerHeadAfterRope,
}
