//! An architecture as a value: everything the one forward pass needs to know of a model. Does not know file formats and how
//! their keys are spelled.

pub use throng_kernels::reference::RopeStyle;
pub use throng_kernels::rows::Activation;

/// A decoder-only transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// The family, as `model_type` of a `config.json` spells it.
    pub family: &'static str,
    /// Rows of the embedding table; token ids are below it.
    pub vocabulary_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Most tokens of one sequence.
    pub max_sequence_tokens: usize,
    /// Added to the mean square in every norm.
    pub norm_eps: f32,
    /// Added to every stored norm gain (Gemma stores gain − 1 in safetensors).
    pub norm_gain_offset: f32,
    /// Multiplies the embeddings.
    pub embedding_scale: f32,
    /// Multiplies what a layer adds to the residual stream.
    pub residual_scale: f32,
    /// Multiplies the logits.
    pub logits_scale: f32,
    /// Caps the logits: `cap * tanh(x / cap)`.
    pub logits_softcap: Option<f32>,
    /// Multiplies query · key.
    pub attention_scale: f32,
    /// Caps attention scores.
    pub attention_softcap: Option<f32>,
    /// Norm of queries and keys before rotation.
    pub qk_norm: QkNorm,
    /// Which norms surround attention and feed-forward.
    pub norms: NormPlacement,
    /// The feed-forward's activation.
    pub activation: Activation,
    /// Which elements of a head are rotated together.
    pub rope_style: RopeStyle,
    /// The distinct rotary embeddings; layers name them by index.
    pub ropes: Vec<RopeTable>,
    /// Whether the embedding table is also the output projection.
    pub tied_embeddings: bool,
    /// The layers.
    pub layers: Vec<LayerConfig>,
}

/// Where layers of one model differ.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerConfig {
    /// The rotary embedding of queries and keys, an index into [`DecoderConfig::ropes`]; `None`: no rotation.
    pub rope_idx: Option<usize>,
    /// That of queries where it is another one.
    pub query_rope_idx: Option<usize>,
    /// How many positions a token sees, its own included; all when absent.
    pub sliding_window: Option<usize>,
    /// The feed-forward block of the layer.
    pub feed_forward: FeedForward,
}

/// The feed-forward block of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FeedForward {
    /// One gated feed-forward network of this width.
    Dense {
        /// Columns of the hidden layer.
        width: usize,
    },
    /// A routed mixture of gated feed-forward networks.
    Experts {
        /// How many there are.
        n_experts: usize,
        /// Width of one.
        width: usize,
        /// How they are chosen and weighted.
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
}

/// How experts are chosen: those with the `n_used` largest scores, which are also their weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Routing {
    /// Experts of one token.
    pub n_used: usize,
    /// Whether the chosen weights are made to sum to 1.
    pub normalize: bool,
    /// How logits become scores.
    pub score: RoutingScore,
    /// Whether each expert has a bias that is added to its score where experts are chosen, and nowhere else (arXiv:2408.15664).
    pub is_biased: bool,
    /// Multiplies the weights in the end.
    pub scale: f32,
}

/// How the logits of a router become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoutingScore {
    /// Softmax over all experts.
    Softmax,
    /// The sigmoid of each.
    Sigmoid,
}

impl Routing {
    /// By softmax over all experts.
    pub fn softmax(n_used: usize, normalize: bool) -> Self {
        Self { n_used, normalize, score: RoutingScore::Softmax, is_biased: false, scale: 1.0 }
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

/// Which norms surround attention and feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlacement {
    /// Before each (Llama).
    Pre,
    /// After each, before its result joins the residual stream (OLMo 2).
    Post,
    /// Both (Gemma 2).
    PreAndPost,
}

impl NormPlacement {
    /// Whether there is one before.
    pub fn has_pre(self) -> bool {
        self != Self::Post
    }

    /// Whether there is one after.
    pub fn has_post(self) -> bool {
        self != Self::Pre
    }
}

/// One rotary embedding: pair `i` of a token at position `p` is rotated by `p * frequencies[i]`.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// Radians per position, half as many as rotated elements.
    pub frequencies: Vec<f64>,
    /// Multiplies cosines and sines (YaRN's attention temperature; else 1).
    pub amplitude: f64,
    /// Multiplies them besides, by position.
    pub growth: Option<RopeGrowth>,
    /// The frequencies where no sequence is longer than the context of the first training (LongRoPE).
    pub short: Option<ShortRope>,
}

/// A factor of queries that grows with the position `p` (Llama 4): `1 + beta * ln(1 + floor(p / interval))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeGrowth {
    /// What the logarithm is multiplied with.
    pub beta: f64,
    /// Positions that have one factor.
    pub interval: f64,
}

impl RopeGrowth {
    /// The factor at a position.
    pub fn at(&self, position: usize) -> f64 {
        1.0 + self.beta * (1.0 + (position as f64 / self.interval).floor()).ln()
    }
}

/// The short-context frequencies of a model that was trained for a short context and extended to a longer one.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortRope {
    /// Most tokens of a sequence with these frequencies.
    pub max_tokens: usize,
    /// As many as those of the long context.
    pub frequencies: Vec<f64>,
    /// Multiplies cosines and sines.
    pub amplitude: f64,
}

impl RopeTable {
    /// The rotary embedding where sequences have at most `max_sequence_tokens`. It is the same for all sequences, also for short
    /// ones in a long context: a change within a sequence would leave its cached keys with the wrong rotation.
    pub fn for_context(&self, max_sequence_tokens: usize) -> Self {
        match &self.short {
            Some(short) if max_sequence_tokens <= short.max_tokens => {
                Self { frequencies: short.frequencies.clone(), amplitude: short.amplitude, ..self.plain() }
            }
            _ => self.plain(),
        }
    }

    fn plain(&self) -> Self {
        Self { short: None, ..self.clone() }
    }
}
