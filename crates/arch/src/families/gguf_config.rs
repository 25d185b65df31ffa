//! Reads the architecture's keys of GGUF metadata (llama.cpp, gguf-py/gguf/constants.py). Does not know
//! families.

use super::ConfigError;
use super::hf_config::mrope_sections;
use super::limits::{check_head_dim, check_n_layers};
use super::rope_scaling::{Factors, RopeScaling, yarn_amplitude};
use crate::config::{
    AttentionConfig, DecoderConfig, EncoderEmbedding, FeedForward, LayerConfig, Mixer, NormKind, RopeTable,
    Routing,
};
use throng_checkpoint::TensorSource;
use throng_checkpoint::gguf::{GgufArray, GgufMetadata, GgufValue};

/// GGUF metadata under the prefix of its architecture, and the tensors, whose shapes give a few sizes.
pub struct GgufConfig<'a> {
    metadata: &'a GgufMetadata,
    tensors: &'a dyn TensorSource,
    architecture: &'a str,
}

impl<'a> GgufConfig<'a> {
    /// # Errors
    /// When the file does not name its architecture.
    pub fn new(metadata: &'a GgufMetadata, tensors: &'a dyn TensorSource) -> Result<Self, ConfigError> {
        let architecture = metadata.get("general.architecture").and_then(GgufValue::as_str);
        let architecture =
            architecture.ok_or_else(|| ConfigError::Missing("general.architecture".to_owned()))?;
        Ok(Self { metadata, tensors, architecture })
    }

    /// The architecture that the file names.
    pub fn architecture(&self) -> &'a str {
        self.architecture
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a GgufValue) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.metadata.get(&self.key(name)) else { return Ok(None) };
        let error = || ConfigError::invalid(self.key(name), format!("{value:.60?}"), expected);
        read(value).map(Some).ok_or_else(error)
    }

    /// A size, if the file has it. An array with a size for each layer is accepted if all but zeros are
    /// equal.
    pub(super) fn size(&self, name: &str) -> Result<Option<usize>, ConfigError> {
        let found = self.typed(name, "one size for all layers", |value| match value.as_array() {
            None => value.as_u64(),
            Some(array) => {
                let sizes = array.to_u64s()?;
                let mut sizes = sizes.iter().copied().filter(|size| *size != 0);
                let first = sizes.next()?;
                sizes.all(|size| size == first).then_some(first)
            }
        })?;
        found
            .map(|n| usize::try_from(n).map_err(|_| ConfigError::invalid(self.key(name), n, "a size")))
            .transpose()
    }

    /// A required size.
    pub(super) fn required_size(&self, name: &str) -> Result<usize, ConfigError> {
        self.size(name)?.ok_or_else(|| ConfigError::Missing(self.key(name)))
    }

    /// The number under `name`; `None` if absent.
    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, ConfigError> {
        self.typed(name, "a number", |value| value.as_f64().or_else(|| value.as_u64().map(|n| n as f64)))
    }

    /// The boolean under `name`; `None` if absent.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, ConfigError> {
        self.typed(name, "true or false", |value| match value {
            GgufValue::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, ConfigError> {
        self.typed(name, "a string", GgufValue::as_str)
    }

    /// Whether the file has a tensor of that name.
    pub(super) fn has_tensor(&self, name: &str) -> bool {
        self.tensors.tensor(name).is_some()
    }

    /// A Llama with the sizes of this file, from which every family starts.
    pub(super) fn llama(&self, family: &'static str) -> Result<DecoderConfig, ConfigError> {
        let hidden_size = self.required_size("embedding_length")?;
        let n_heads = self.required_size("attention.head_count")?;
        let head_dim = self.head_dim()?;
        if let Some(value_length) = self.size("attention.value_length")?.filter(|n| *n != head_dim) {
            let key = self.key("attention.value_length");
            return Err(ConfigError::invalid(key, value_length, format!("{head_dim}, as the key length")));
        }
        let n_layers = self.required_size("block_count")?;
        check_n_layers(n_layers)?;
        let n_kv_heads = self.size("attention.head_count_kv")?.unwrap_or(n_heads);
        let attention = AttentionConfig::llama(n_heads, n_kv_heads, head_dim);
        let layer = |layer_idx| -> Result<LayerConfig, ConfigError> {
            let feed_forward = self.feed_forward(layer_idx)?;
            Ok(LayerConfig { mixer: Mixer::Attention(attention), feed_forward })
        };
        let norm_eps = self.number("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-6) as f32;
        let embedding = self.tensors.tensor("token_embd.weight");
        let vocabulary_size = embedding.and_then(|tensor| tensor.shape.first().copied());
        Ok(DecoderConfig {
            vocabulary_size: vocabulary_size
                .ok_or_else(|| ConfigError::Missing("the tensor token_embd.weight".to_owned()))?,
            hidden_size,
            max_sequence_tokens: self.size("context_length")?.unwrap_or(2048),
            ropes: vec![self.rope(head_dim)?],
            tied_embeddings: !self.has_tensor("output.weight"),
            layers: (0..n_layers).map(layer).collect::<Result<_, _>>()?,
            ..DecoderConfig::llama(family, norm_eps)
        })
    }

    /// Windows of layers: a flag for each, or every n-th layer has none, the last of n or the `first`.
    pub(super) fn windowed(
        &self,
        interval: usize,
        first: bool,
    ) -> Result<impl Fn(usize) -> bool, ConfigError> {
        let name = "attention.sliding_window_pattern";
        let flags = match self.metadata.get(&self.key(name)) {
            Some(GgufValue::Array(GgufArray::Bool(flags))) => Some(flags),
            _ => None,
        };
        let interval = if flags.is_some() { interval } else { self.size(name)?.unwrap_or(interval) };
        Ok(move |layer_idx: usize| match flags {
            Some(flags) => flags.get(layer_idx).copied().unwrap_or(false),
            None if first => !layer_idx.is_multiple_of(interval.max(1)),
            None => !(layer_idx + 1).is_multiple_of(interval.max(1)),
        })
    }

    /// An encoder, whose tokens attend to each other in both directions: layer norms, and segments if the
    /// file has them.
    pub(super) fn encoder(&self, family: &'static str) -> Result<DecoderConfig, ConfigError> {
        let segments = self.tensors.tensor("token_types.weight");
        let n_segments = segments.and_then(|tensor| tensor.shape.first().copied()).unwrap_or(0);
        let norm_eps = self.number("attention.layer_norm_epsilon")?.unwrap_or(1e-12) as f32;
        let config = DecoderConfig {
            norm_eps,
            post_norm_eps: norm_eps,
            norm_kind: NormKind::Layer,
            encoder: Some(EncoderEmbedding { positions: None, n_segments }),
            tied_embeddings: true,
            ..self.llama(family)?
        };
        Ok(config.with_attention(|attention| attention.is_bidirectional = true))
    }

    /// Elements of a head.
    pub(super) fn head_dim(&self) -> Result<usize, ConfigError> {
        let head_dim = match self.size("attention.key_length")? {
            Some(head_dim) => head_dim,
            None => {
                let n_heads = self.required_size("attention.head_count")?;
                self.required_size("embedding_length")?.checked_div(n_heads).unwrap_or(0)
            }
        };
        check_head_dim(head_dim)?;
        Ok(head_dim)
    }

    /// A dense feed-forward block, or experts where the file has a number of experts and the layer a router.
    fn feed_forward(&self, layer_idx: usize) -> Result<FeedForward, ConfigError> {
        let n_experts = self.size("expert_count")?.unwrap_or(0);
        if n_experts == 0 || !self.has_tensor(&format!("blk.{layer_idx}.ffn_gate_inp.weight")) {
            return Ok(FeedForward::Dense { width: self.required_size("feed_forward_length")? });
        }
        let width = match self.size("expert_feed_forward_length")? {
            Some(width) => width,
            None => self.required_size("feed_forward_length")?,
        };
        let routing = Routing::softmax(self.required_size("expert_used_count")?, true);
        Ok(FeedForward::Experts { n_experts, width, routing, shared: None })
    }

    /// Routing by sigmoid with a bias that affects only the choice, unless the file says otherwise.
    pub(super) fn sigmoid_routing(&self) -> Result<Routing, ConfigError> {
        let key = "expert_gating_func";
        if let Some(other) = self.size(key)?.filter(|function| ![0, 2].contains(function)) {
            let found = other.to_string();
            return Err(ConfigError::Variant { key: self.key(key), found, expected: "2" });
        }
        // 0 means that there is none.
        let scale = self.number("expert_weights_scale")?.filter(|scale| *scale != 0.0);
        Ok(Routing {
            normalize: self.flag("expert_weights_norm")?.unwrap_or(true),
            scale: scale.unwrap_or(1.0) as f32,
            ..Routing::sigmoid(self.required_size("expert_used_count")?, true)
        })
    }

    /// The rotary embedding of all layers that have no other.
    fn rope(&self, head_dim: usize) -> Result<RopeTable, ConfigError> {
        let theta = self.number("rope.freq_base")?.unwrap_or(10_000.0);
        let n_rotated = self.size("rope.dimension_count")?.unwrap_or(head_dim);
        if n_rotated > head_dim {
            let key = self.key("rope.dimension_count");
            return Err(ConfigError::invalid(key, n_rotated, format!("at most the head size {head_dim}")));
        }
        let scaling = match self.factors()? {
            Some(scaling) => scaling,
            None => self.scaling()?,
        };
        let table = scaling.table(theta, n_rotated).ok_or_else(|| {
            let expected = format!("{} elements", n_rotated / 2);
            ConfigError::invalid("the tensor of rope factors", "another length", expected)
        })?;
        Ok(RopeTable { sections: self.sections(n_rotated / 2)?, ..table })
    }

    /// The section of positions that each of `n_pairs` pairs is rotated by; empty if all have the same
    /// position.
    fn sections(&self, n_pairs: usize) -> Result<Vec<u8>, ConfigError> {
        let name = "rope.dimension_sections";
        let sizes = self.typed(name, "a list of sizes", |value| value.as_array()?.to_u64s())?;
        let Some([time, height, width, ..]) = sizes.as_deref().filter(|sizes| sizes.iter().any(|n| *n > 0))
        else {
            return Ok(Vec::new());
        };
        // The files do not say it: from Qwen 3 on sections alternate.
        let is_interleaved = self.architecture.starts_with("qwen3");
        mrope_sections([*time, *height, *width], is_interleaved, n_pairs).ok_or_else(|| {
            let expected = format!("three sizes whose sum is {n_pairs}");
            ConfigError::invalid(self.key(name), format!("{sizes:?}"), expected)
        })
    }

    fn scaling(&self) -> Result<RopeScaling, ConfigError> {
        let factor = match self.number("rope.scaling.factor")? {
            Some(factor) => factor,
            None => self.number("rope.scale_linear")?.unwrap_or(1.0),
        };
        match self.text("rope.scaling.type")?.unwrap_or("linear") {
            "none" => Ok(RopeScaling::None),
            // A scale of 0 means no scaling.
            "linear" if factor == 0.0 || factor == 1.0 => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor }),
            "yarn" => {
                let max_tokens = self.number("context_length")?.unwrap_or(2048.0);
                let attention_factor = self.number("rope.scaling.attn_factor")?.unwrap_or(1.0);
                Ok(RopeScaling::Yarn {
                    factor,
                    original_tokens: self
                        .number("rope.scaling.original_context_length")?
                        .unwrap_or(max_tokens),
                    beta_fast: self.number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                    beta_slow: self.number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                    // gpt-oss was trained with bounds that are not rounded, which its files do not say.
                    truncate: self.architecture != "gpt-oss",
                    amplitude: attention_factor * yarn_amplitude(factor, 1.0),
                })
            }
            other => Err(ConfigError::Variant {
                key: self.key("rope.scaling.type"),
                found: super::shorten(other),
                expected: "none, linear, yarn",
            }),
        }
    }

    /// Factors stored as tensors: `rope_freqs` (Llama 3), or the long and short ones of Phi 3, used as in
    /// safetensors checkpoints.
    fn factors(&self) -> Result<Option<RopeScaling>, ConfigError> {
        if let Some(factors) = self.factors_in("rope_freqs.weight")? {
            return Ok(Some(RopeScaling::Factors(factors)));
        }
        let max_tokens = self.number("context_length")?.unwrap_or(2048.0);
        let original = self.number("rope.scaling.original_context_length")?.unwrap_or(max_tokens);
        let short = self.factors_in("rope_factors_short.weight")?;
        if max_tokens <= original {
            return Ok(short.map(RopeScaling::Factors));
        }
        Ok(match (self.factors_in("rope_factors_long.weight")?, short) {
            (Some(long), Some(short)) => {
                Some(RopeScaling::LongRope { long, short, original_tokens: original as usize })
            }
            (long, _) => long.map(RopeScaling::Factors),
        })
    }

    fn factors_in(&self, name: &str) -> Result<Option<Factors>, ConfigError> {
        let Some(tensor) = self.tensors.tensor(name) else { return Ok(None) };
        if tensor.format != throng_kernels::quant::Format::F32 {
            return Err(ConfigError::invalid(name, tensor.format.name(), "F32"));
        }
        let numbers = tensor.data.as_chunks::<4>().0.iter();
        let factors = numbers.map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect();
        let amplitude = self.number("rope.scaling.attn_factor")?.unwrap_or(1.0);
        Ok(Some(Factors { factors, amplitude }))
    }
}
