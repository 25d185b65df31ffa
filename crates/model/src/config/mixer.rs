//! What mixes the tokens of a sequence in a layer. Does not know feed-forward blocks and how anything is computed.

use throng_kernels::recurrent::StateLayerShape;
pub use throng_kernels::reference::{DeltaShape, StateSpaceShape};

use super::RopeStyle;

/// The part of a layer in which a token learns from the tokens before it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mixer {
    /// Softmax attention over keys and values in the KV cache.
    Attention(AttentionConfig),
    /// A gated convolution over the last tokens.
    ShortConv {
        /// How many tokens, the token itself included.
        kernel: usize,
    },
    /// A gated delta net.
    GatedDelta(DeltaShape),
    /// A state space model.
    StateSpace(StateSpaceShape),
    /// Nothing: the layer is a feed-forward block alone.
    None,
}

impl Mixer {
    /// The recurrent state that it keeps of a sequence; `None` where it keeps none. `hidden` is the width of the residual stream.
    pub fn state(&self, hidden: usize) -> Option<StateLayerShape> {
        match *self {
            Self::Attention(_) | Self::None => None,
            Self::ShortConv { kernel } => {
                Some(StateLayerShape { n_channels: hidden, kernel, n_heads: 0, key_dim: 0, value_dim: 0 })
            }
            Self::GatedDelta(shape) => Some(StateLayerShape {
                n_channels: shape.n_channels(),
                kernel: shape.kernel,
                n_heads: shape.n_value_heads,
                key_dim: shape.key_dim,
                value_dim: shape.value_dim,
            }),
            Self::StateSpace(shape) => Some(StateLayerShape {
                n_channels: shape.n_channels(),
                kernel: shape.kernel,
                n_heads: shape.n_heads,
                key_dim: shape.state_dim,
                value_dim: shape.head_dim,
            }),
        }
    }

    /// Columns of the input of a recurrent mixer and of its output; `None` for another one.
    pub fn recurrent_widths(&self, hidden: usize) -> Option<(usize, usize)> {
        match *self {
            Self::Attention(_) | Self::None => None,
            Self::ShortConv { .. } => Some((3 * hidden, hidden)),
            Self::GatedDelta(shape) => Some((shape.input_width(), shape.value_width())),
            Self::StateSpace(shape) => Some((shape.input_width(), shape.width())),
        }
    }
}

/// The attention of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionConfig {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Multiplies query · key.
    pub scale: f32,
    /// Caps scores: `cap * tanh(x / cap)`.
    pub softcap: Option<f32>,
    /// Norm of queries and keys before rotation.
    pub qk_norm: QkNorm,
    /// Which elements of a head are rotated together.
    pub rope_style: RopeStyle,
    /// The rotary embedding of queries and keys, an index into [`DecoderConfig::ropes`](super::DecoderConfig::ropes); `None`: no
    /// rotation.
    pub rope_idx: Option<usize>,
    /// That of queries where it is another one.
    pub query_rope_idx: Option<usize>,
    /// How many positions a token sees, its own included; all when absent.
    pub sliding_window: Option<usize>,
    /// Whether the output is multiplied by the sigmoid of a projection of the input.
    pub has_output_gate: bool,
}

impl AttentionConfig {
    /// Llama's, with heads of these numbers and size.
    pub fn llama(n_heads: usize, n_kv_heads: usize, head_dim: usize) -> Self {
        Self {
            n_heads,
            n_kv_heads,
            head_dim,
            scale: (1.0 / (head_dim as f64).sqrt()) as f32,
            softcap: None,
            qk_norm: QkNorm::None,
            rope_style: RopeStyle::HalfSplit,
            rope_idx: Some(0),
            query_rope_idx: None,
            sliding_window: None,
            has_output_gate: false,
        }
    }

    /// Columns of all query heads.
    pub fn query_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Columns of all key heads; values have as many.
    pub fn key_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
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
    /// None.
    None,
    /// Over each head, one gain for all heads.
    PerHead,
    /// Over all heads together.
    WholeWidth,
}
