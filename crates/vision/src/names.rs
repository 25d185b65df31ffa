//! Names of an encoder's tensors. Does not know shapes.

/// Names of the tensors of an encoder, without the prefix that all have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderNames {
    /// Linear layer from the values of a patch.
    pub patch: &'static str,
    /// Table of positions.
    pub positions: &'static str,
    /// Class token.
    pub class_token: &'static str,
    /// Norm before the layers.
    pub pre_norm: &'static str,
    /// Norm after the layers.
    pub post_norm: &'static str,
    /// Prefix of a layer, before its index.
    pub layers: &'static str,
    /// Names in a layer.
    pub layer: LayerNames,
}

/// Names of the tensors of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerNames {
    /// Norm before attention.
    pub attention_norm: &'static str,
    /// Queries, keys and values in one tensor, or in three.
    pub query_key_value: Heads,
    /// Output of attention.
    pub output: &'static str,
    /// Factors of the outputs of attention; empty: none.
    pub attention_scale: &'static str,
    /// Norm before the feed-forward network.
    pub mlp_norm: &'static str,
    /// Gate of the feed-forward network; empty: none.
    pub gate: &'static str,
    /// First layer of the feed-forward network.
    pub up: &'static str,
    /// Last layer of the feed-forward network.
    pub down: &'static str,
    /// Factors of the outputs of the feed-forward network; empty: none.
    pub mlp_scale: &'static str,
}

/// Names of the projections to queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heads {
    /// One tensor.
    Joined(&'static str),
    /// Three tensors.
    Apart([&'static str; 3]),
}

/// Qwen's names.
pub const QWEN: EncoderNames = EncoderNames {
    patch: "patch_embed.proj",
    positions: "pos_embed.weight",
    class_token: "",
    pre_norm: "",
    post_norm: "",
    layers: "blocks.",
    layer: LayerNames {
        attention_norm: "norm1",
        query_key_value: Heads::Joined("attn.qkv"),
        output: "attn.proj",
        attention_scale: "",
        mlp_norm: "norm2",
        gate: "",
        up: "mlp.linear_fc1",
        down: "mlp.linear_fc2",
        mlp_scale: "",
    },
};

/// Names of SigLIP, and nearly those of CLIP.
pub const SIGLIP: EncoderNames = EncoderNames {
    patch: "embeddings.patch_embedding",
    positions: "embeddings.position_embedding.weight",
    class_token: "embeddings.class_embedding",
    pre_norm: "pre_layrnorm",
    post_norm: "post_layernorm",
    layers: "encoder.layers.",
    layer: LayerNames {
        attention_norm: "layer_norm1",
        query_key_value: Heads::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
        output: "self_attn.out_proj",
        attention_scale: "",
        mlp_norm: "layer_norm2",
        gate: "",
        up: "mlp.fc1",
        down: "mlp.fc2",
        mlp_scale: "",
    },
};
