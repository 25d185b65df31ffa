//! Names of an encoder's tensors. Does not know shapes.

/// Names of the tensors of an encoder, without the prefix that all have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderNames {
    /// Linear layer from the values of a patch.
    pub patch: &'static str,
    /// Name of the table of positions.
    pub positions: &'static str,
    /// Name of the class token.
    pub class_token: &'static str,
    /// Name of the norm of patches.
    pub patch_norm: &'static str,
    /// Name of the norm before the layers.
    pub pre_norm: &'static str,
    /// Name of the norm after the layers.
    pub post_norm: &'static str,
    /// Prefix of a layer, before its index.
    pub layers: &'static str,
    /// Names of a layer's tensors.
    pub layer: LayerNames,
}

/// Names of the tensors of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerNames {
    /// Name of the norm before attention.
    pub attention_norm: &'static str,
    /// Queries, keys and values in one tensor, or in three.
    pub query_key_value: Heads,
    /// Name of attention's output projection.
    pub output: &'static str,
    /// Norm of the output of attention; empty: none.
    pub attention_post_norm: &'static str,
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
    /// Norm of the output of the feed-forward network; empty: none.
    pub mlp_post_norm: &'static str,
    /// Factors of the outputs of the feed-forward network; empty: none.
    pub mlp_scale: &'static str,
}

/// Names of the projections to queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heads {
    /// One tensor with all heads.
    Joined(&'static str),
    /// Three tensors, one for each projection.
    Apart([&'static str; 3]),
}

/// Qwen's names.
pub const QWEN: EncoderNames = EncoderNames {
    patch: "patch_embed.proj",
    positions: "pos_embed.weight",
    class_token: "",
    patch_norm: "",
    pre_norm: "",
    post_norm: "",
    layers: "blocks.",
    layer: LayerNames {
        attention_norm: "norm1",
        query_key_value: Heads::Joined("attn.qkv"),
        output: "attn.proj",
        attention_post_norm: "",
        attention_scale: "",
        mlp_norm: "norm2",
        gate: "",
        up: "mlp.linear_fc1",
        down: "mlp.linear_fc2",
        mlp_post_norm: "",
        mlp_scale: "",
    },
};

/// Names of SigLIP, and nearly those of CLIP.
pub const SIGLIP: EncoderNames = EncoderNames {
    patch: "embeddings.patch_embedding",
    positions: "embeddings.position_embedding.weight",
    class_token: "embeddings.class_embedding",
    patch_norm: "",
    pre_norm: "pre_layrnorm",
    post_norm: "post_layernorm",
    layers: "encoder.layers.",
    layer: LayerNames {
        attention_norm: "layer_norm1",
        query_key_value: Heads::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
        output: "self_attn.out_proj",
        attention_post_norm: "",
        attention_scale: "",
        mlp_norm: "layer_norm2",
        gate: "",
        up: "mlp.fc1",
        down: "mlp.fc2",
        mlp_post_norm: "",
        mlp_scale: "",
    },
};

/// Names of Qwen2.5-VL.
pub const QWEN_2_5: EncoderNames = EncoderNames {
    layer: LayerNames { gate: "mlp.gate_proj", up: "mlp.up_proj", down: "mlp.down_proj", ..QWEN.layer },
    ..QWEN
};

/// Names of GLM-4V.
pub const GLM: EncoderNames = EncoderNames {
    positions: "embeddings.position_embedding.weight",
    patch_norm: "post_conv_layernorm",
    post_norm: "post_layernorm",
    ..QWEN_2_5
};

/// Names of Pixtral.
pub const PIXTRAL: EncoderNames = EncoderNames {
    patch: "patch_conv",
    positions: "",
    class_token: "",
    patch_norm: "",
    pre_norm: "ln_pre",
    post_norm: "",
    layers: "transformer.layers.",
    layer: LayerNames {
        attention_norm: "attention_norm",
        query_key_value: Heads::Apart(["attention.q_proj", "attention.k_proj", "attention.v_proj"]),
        output: "attention.o_proj",
        attention_post_norm: "",
        attention_scale: "",
        mlp_norm: "ffn_norm",
        gate: "feed_forward.gate_proj",
        up: "feed_forward.up_proj",
        down: "feed_forward.down_proj",
        mlp_post_norm: "",
        mlp_scale: "",
    },
};

/// Names of InternVL.
pub const INTERN: EncoderNames = EncoderNames {
    patch: "embeddings.patch_embeddings.projection",
    positions: "embeddings.position_embeddings",
    class_token: "embeddings.cls_token",
    patch_norm: "",
    pre_norm: "",
    post_norm: "layernorm",
    layers: "encoder.layer.",
    layer: LayerNames {
        attention_norm: "layernorm_before",
        query_key_value: Heads::Apart(["attention.q_proj", "attention.k_proj", "attention.v_proj"]),
        output: "attention.projection_layer",
        attention_post_norm: "",
        attention_scale: "lambda_1",
        mlp_norm: "layernorm_after",
        gate: "",
        up: "mlp.fc1",
        down: "mlp.fc2",
        mlp_post_norm: "",
        mlp_scale: "lambda_2",
    },
};

/// Names of Llama 4.
pub const LLAMA_4: EncoderNames = EncoderNames {
    patch: "patch_embedding.linear",
    positions: "positional_embedding_vlm",
    class_token: "class_embedding",
    patch_norm: "",
    pre_norm: "layernorm_pre",
    post_norm: "layernorm_post",
    layers: "model.layers.",
    layer: LayerNames {
        attention_norm: "input_layernorm",
        output: "self_attn.o_proj",
        mlp_norm: "post_attention_layernorm",
        ..SIGLIP.layer
    },
};

/// Names of Gemma 4.
pub const GEMMA_4: EncoderNames = EncoderNames {
    patch: "patch_embedder.input_proj",
    positions: "patch_embedder.position_embedding_table",
    class_token: "",
    patch_norm: "",
    pre_norm: "",
    post_norm: "",
    layers: "encoder.layers.",
    layer: LayerNames {
        attention_norm: "input_layernorm",
        query_key_value: Heads::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
        output: "self_attn.o_proj",
        attention_post_norm: "post_attention_layernorm",
        attention_scale: "",
        mlp_norm: "pre_feedforward_layernorm",
        gate: "mlp.gate_proj",
        up: "mlp.up_proj",
        down: "mlp.down_proj",
        mlp_post_norm: "post_feedforward_layernorm",
        mlp_scale: "",
    },
};

/// Names in GGUF files.
pub const GGUF: EncoderNames = EncoderNames {
    patch: "patch_embd",
    positions: "position_embd.weight",
    class_token: "class_embd",
    patch_norm: "",
    pre_norm: "pre_ln",
    post_norm: "post_ln",
    layers: "blk.",
    layer: LayerNames {
        attention_norm: "ln1",
        query_key_value: Heads::Apart(["attn_q", "attn_k", "attn_v"]),
        output: "attn_out",
        attention_post_norm: "",
        attention_scale: "",
        mlp_norm: "ln2",
        gate: "ffn_gate",
        up: "ffn_up",
        down: "ffn_down",
        mlp_post_norm: "",
        mlp_scale: "",
    },
};

/// Names in GGUF files with queries, keys and values in one tensor.
pub const GGUF_JOINED: EncoderNames =
    EncoderNames { layer: LayerNames { query_key_value: Heads::Joined("attn_qkv"), ..GGUF.layer }, ..GGUF };
