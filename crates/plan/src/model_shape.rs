//! A model as plain numbers: matrices of its layers, cache elements of a token, recurrent states, experts.

use crate::error::{PlanError, positive};
use crate::machine::ComputeType;

/// The direction in which a matrix is cut when devices share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Each device computes some columns of the result.
    Columns,
    /// Each device sums over some columns of the input; an all-reduce adds the sums.
    Rows,
    /// Every device has the whole matrix.
    None,
}

/// A matrix of weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Matrix {
    /// Number of columns of the result.
    pub n: f64,
    /// Number of columns of the input.
    pub k: f64,
    /// Division of the matrix among devices.
    pub cut: Cut,
}

impl Matrix {
    /// Number of the matrix's parameters.
    pub fn n_parameters(&self) -> f64 {
        self.n * self.k
    }

    /// The part of the matrix on one of `n_devices`.
    pub fn part(&self, n_devices: f64) -> Self {
        match self.cut {
            Cut::Columns => Self { n: self.n / n_devices, ..*self },
            Cut::Rows => Self { k: self.k / n_devices, ..*self },
            Cut::None => *self,
        }
    }
}

/// Keys and values that a layer keeps of each token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheShape {
    /// Numbers of one token: keys and values of all heads, or the latent vector.
    pub elements_per_token: f64,
    /// Heads among which devices share them; 1 where each device needs all.
    pub n_heads: f64,
    /// Whether they are the layer's own, and not read from the cache of another layer.
    pub is_own: bool,
}

/// Routed experts of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertShape {
    /// Number of experts.
    pub n_experts: f64,
    /// Number of experts of a token.
    pub n_used: f64,
    /// The matrices of one expert.
    pub matrices: Vec<Matrix>,
}

impl ExpertShape {
    /// Experts that at least one of some tokens uses, when each token chooses at random.
    pub fn n_touched(&self, n_tokens: f64) -> f64 {
        self.n_experts * (1.0 - (1.0 - self.n_used / self.n_experts).powf(n_tokens))
    }

    /// Parameters of one expert.
    pub fn n_parameters(&self) -> f64 {
        self.matrices.iter().map(Matrix::n_parameters).sum()
    }
}

/// Layers of the same shape, and their number.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LayerShape {
    /// Number of such layers.
    pub n_layers: f64,
    /// Matrices that every token is multiplied with.
    pub matrices: Vec<Matrix>,
    /// Shape of the routed experts, if any.
    pub experts: Option<ExpertShape>,
    /// Keys and values that it reads.
    pub cache: Option<CacheShape>,
    /// Operations of attention for each pair of a token and a position that it attends to, over all heads.
    pub operations_per_pair: f64,
    /// Number of positions that a token attends to; none: all before it.
    pub window: Option<u64>,
    /// Bytes of a sequence's recurrent state.
    pub state_bytes: f64,
    /// Number of all-reduces of the residual stream when devices share the layer.
    pub n_all_reduces: f64,
}

/// Type of the weights in memory and of the arithmetic with them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WeightType {
    /// Bits of a parameter, with the scales of its block.
    pub bits: f64,
    /// Type in which products are computed.
    pub compute: ComputeType,
}

impl WeightType {
    /// Weights in bfloat16.
    pub const BF16: Self = Self { bits: 16.0, compute: ComputeType::Bf16 };

    /// The type of this name: as checkpoints and `throng serve --quantize` call them. Codes of GGUF have the
    /// scales of their blocks; 4-bit codes of safetensors (`int4`) one 16-bit scale for 128, and are computed
    /// as 16-bit floats.
    ///
    /// # Errors
    /// When there is no such type.
    pub fn named(name: &str) -> Result<Self, PlanError> {
        let of = |bits, compute| Ok(Self { bits, compute });
        match name.to_ascii_lowercase().as_str() {
            "f32" => of(32.0, ComputeType::F32),
            "bf16" | "f16" => of(16.0, ComputeType::Bf16),
            "fp8" => of(8.0, ComputeType::Fp8),
            "int8" => of(8.0, ComputeType::Int8),
            "q8_0" => of(8.5, ComputeType::Int8),
            "q4_0" => of(4.5, ComputeType::Int8),
            "int4" => of(4.125, ComputeType::Bf16),
            "nvfp4" => of(4.5, ComputeType::Fp4),
            _ => Err(PlanError::value(
                "the type of the weights",
                name,
                "expected f32, bf16, f16, fp8, int8, q8_0, q4_0, int4 or nvfp4",
            )),
        }
    }
}

/// Bytes of an element of the KV cache, by the names that `--kv-cache-dtype` has.
///
/// # Errors
/// When there is no such type.
pub fn kv_element_bytes(name: &str) -> Result<f64, PlanError> {
    match name.to_ascii_lowercase().as_str() {
        "f32" => Ok(4.0),
        "bf16" | "f16" => Ok(2.0),
        "fp8" => Ok(1.0),
        // 32 codes with a 16-bit scale.
        "q8_0" => Ok(34.0 / 32.0),
        _ => {
            Err(PlanError::value("the type of keys and values", name, "expected f32, bf16, f16, fp8 or q8_0"))
        }
    }
}

/// Sizes of a model on which its speed and memory depend.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelShape {
    /// Name of the model.
    pub name: String,
    /// Layers of the model.
    pub layers: Vec<LayerShape>,
    /// Width of the residual stream.
    pub hidden_size: f64,
    /// Number of rows of the embedding table.
    pub vocabulary_size: f64,
    /// Whether the embedding table is also the output projection.
    pub tied_embeddings: bool,
    /// Maximum number of tokens of one sequence.
    pub max_sequence_tokens: u32,
    /// Type of the weights.
    pub weights: WeightType,
    /// Bytes of an element of the KV cache.
    pub kv_element_bytes: f64,
}

/// The sizes of a Llama-like model or mixture of experts, given as flags.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TransformerSizes {
    /// Number of layers.
    pub n_layers: f64,
    /// Width of the residual stream.
    pub hidden_size: f64,
    /// Number of query heads.
    pub n_heads: f64,
    /// Number of key and value heads.
    pub n_kv_heads: f64,
    /// Elements of a head.
    pub head_dim: f64,
    /// Width of the feed-forward network, or of one expert.
    pub feed_forward: f64,
    /// Rows of the embedding table.
    pub vocabulary_size: f64,
    /// Experts of a layer and of a token; none: a dense network.
    pub experts: Option<(f64, f64)>,
    /// Whether the embedding table is also the output projection.
    pub tied_embeddings: bool,
    /// Maximum tokens of one sequence.
    pub max_sequence_tokens: u32,
}

/// The matrices of a gated feed-forward network.
pub fn gated_network(hidden: f64, width: f64) -> Vec<Matrix> {
    vec![
        Matrix { n: 2.0 * width, k: hidden, cut: Cut::Columns },
        Matrix { n: hidden, k: width, cut: Cut::Rows },
    ]
}

impl ModelShape {
    /// A model of these sizes.
    ///
    /// # Errors
    /// When a size is not a finite number above zero, or heads do not divide; the error names it.
    pub fn transformer(name: &str, sizes: &TransformerSizes) -> Result<Self, PlanError> {
        let hidden = positive("hidden", sizes.hidden_size)?;
        let (heads, kv_heads) = (positive("heads", sizes.n_heads)?, positive("kv-heads", sizes.n_kv_heads)?);
        let head_dim = positive("head-dim", sizes.head_dim)?;
        let width = positive("ffn", sizes.feed_forward)?;
        let n_layers = positive("layers", sizes.n_layers)?;
        positive("vocabulary", sizes.vocabulary_size)?;
        if heads % kv_heads != 0.0 {
            return Err(PlanError::value("kv-heads", kv_heads, "expected a divisor of heads"));
        }
        let mut matrices = vec![
            Matrix { n: (heads + 2.0 * kv_heads) * head_dim, k: hidden, cut: Cut::Columns },
            Matrix { n: hidden, k: heads * head_dim, cut: Cut::Rows },
        ];
        let experts = match sizes.experts {
            None => {
                matrices.extend(gated_network(hidden, width));
                None
            }
            Some((n_experts, n_used)) => {
                positive("experts", n_experts)?;
                positive("experts-used", n_used)?;
                if n_used > n_experts {
                    return Err(PlanError::value("experts-used", n_used, "expected at most experts"));
                }
                matrices.push(Matrix { n: n_experts, k: hidden, cut: Cut::None });
                Some(ExpertShape { n_experts, n_used, matrices: gated_network(hidden, width) })
            }
        };
        let layer = LayerShape {
            n_layers,
            matrices,
            experts,
            cache: Some(CacheShape {
                elements_per_token: 2.0 * kv_heads * head_dim,
                n_heads: kv_heads,
                is_own: true,
            }),
            operations_per_pair: 4.0 * heads * head_dim,
            n_all_reduces: 2.0,
            ..LayerShape::default()
        };
        Ok(Self {
            name: name.to_owned(),
            layers: vec![layer],
            hidden_size: hidden,
            vocabulary_size: sizes.vocabulary_size,
            tied_embeddings: sizes.tied_embeddings,
            max_sequence_tokens: sizes.max_sequence_tokens,
            weights: WeightType::BF16,
            kv_element_bytes: 2.0,
        })
    }

    /// Parameters of the layers, of all experts.
    fn layer_parameters(&self, experts_of: impl Fn(&ExpertShape) -> f64) -> f64 {
        let of_layer = |layer: &LayerShape| {
            let dense: f64 = layer.matrices.iter().map(Matrix::n_parameters).sum();
            let routed =
                layer.experts.as_ref().map_or(0.0, |experts| experts_of(experts) * experts.n_parameters());
            layer.n_layers * (dense + routed)
        };
        self.layers.iter().map(of_layer).sum()
    }

    /// Number of all parameters.
    pub fn n_parameters(&self) -> f64 {
        let embeddings =
            self.vocabulary_size * self.hidden_size * if self.tied_embeddings { 1.0 } else { 2.0 };
        embeddings + self.layer_parameters(|experts| experts.n_experts)
    }

    /// Parameters that take part in the computation of one token, the output projection included.
    pub fn n_active_parameters(&self) -> f64 {
        self.vocabulary_size * self.hidden_size + self.layer_parameters(|experts| experts.n_used)
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> f64 {
        self.n_parameters() * self.weights.bits / 8.0
    }

    /// Bytes of the keys and values of one token, over all layers.
    pub fn kv_bytes_per_token(&self) -> f64 {
        self.cache_bytes(1)
    }

    /// Bytes of keys and values of a sequence of this many tokens.
    pub fn cache_bytes(&self, n_tokens: u64) -> f64 {
        self.cache_part_bytes(n_tokens, 1.0)
    }

    /// Bytes of keys and values of a sequence of this many tokens on one of the devices that share each
    /// layer. Devices share heads; a layer with fewer heads than devices is kept more than once.
    pub fn cache_part_bytes(&self, n_tokens: u64, n_devices: f64) -> f64 {
        let of_layer = |layer: &LayerShape| {
            let Some(cache) = layer.cache.filter(|cache| cache.is_own) else { return 0.0 };
            let kept = layer.window.map_or(n_tokens, |window| n_tokens.min(window)) as f64;
            let elements = cache.elements_per_token / n_devices.min(cache.n_heads);
            layer.n_layers * elements * self.kv_element_bytes * kept
        };
        self.layers.iter().map(of_layer).sum()
    }

    /// Bytes of the recurrent states of a sequence.
    pub fn state_bytes(&self) -> f64 {
        self.layers.iter().map(|layer| layer.n_layers * layer.state_bytes).sum()
    }
}
