//! Names of tensors in files. `{}` in an expert's name is replaced by its index. Does not know shapes.

/// Names of a model's tensors in one kind of file.
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields are the tensors")]
pub struct TensorNames {
    pub embedding: &'static str,
    pub final_norm: &'static str,
    pub output: &'static str,
    pub per_layer_embedding: &'static str,
    pub per_layer_projection: &'static str,
    pub per_layer_norm: &'static str,
    /// Embeddings that an encoder adds to those of tokens, and the norm after it.
    pub positions: &'static str,
    pub segments: &'static str,
    pub embedding_norm: &'static str,
    /// Biases by distance, or embeddings of distances, and their norm.
    pub relative: &'static str,
    pub relative_norm: &'static str,
    /// Prefix before a layer's index and a dot.
    pub layer_prefix: &'static str,
    pub layer: LayerNames,
}

/// Names of a layer's tensors in one kind of file; an empty name means that the kind does not have the
/// tensor. Weights and biases of projections are the name with `.weight` and `.bias`.
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields are the tensors")]
pub struct LayerNames {
    pub pre_attention_norm: &'static str,
    pub post_attention_norm: &'static str,
    pub pre_feed_forward_norm: &'static str,
    pub post_feed_forward_norm: &'static str,
    pub query: &'static str,
    pub key: &'static str,
    pub value: &'static str,
    /// Query, key and value stacked in one tensor.
    pub query_key_value: &'static str,
    pub attention_output: &'static str,
    pub attention_gate: &'static str,
    /// Projections of embeddings of distances.
    pub relative_query: &'static str,
    pub relative_key: &'static str,
    /// Latent attention: norm of the compressed queries, norm of the latent vector, and the projections from
    /// both.
    pub query_compression: &'static str,
    pub query_compression_norm: &'static str,
    pub query_expansion: &'static str,
    pub key_value_compression: &'static str,
    pub key_value_compression_norm: &'static str,
    /// Keys and values of all heads in one tensor.
    pub key_value_expansion: &'static str,
    /// Expansion of keys with rows and columns exchanged, and that of values, `[heads, out, in]`.
    pub key_expansion: &'static str,
    pub value_expansion: &'static str,
    /// Tensors of the indexer, which chooses the positions that latent attention reads.
    pub index_query: &'static str,
    pub index_key: &'static str,
    pub index_key_norm: &'static str,
    pub index_weights: &'static str,
    /// Name of the sinks, with its ending.
    pub sinks: &'static str,
    pub query_norm: &'static str,
    pub key_norm: &'static str,
    pub gate: &'static str,
    pub up: &'static str,
    /// Gate and up stacked in one tensor.
    pub gate_up: &'static str,
    /// Up and gate stacked in one tensor, the rows of up first.
    pub up_gate: &'static str,
    pub down: &'static str,
    pub router: &'static str,
    /// Name of the router's bias, with its ending: it is no bias of a projection.
    pub router_bias: &'static str,
    /// Projection to the narrower vector that experts work on, and back.
    pub latent_down: &'static str,
    pub latent_up: &'static str,
    pub expert_gate: &'static str,
    pub expert_up: &'static str,
    pub expert_down: &'static str,
    /// All experts of a layer in one tensor of three dimensions.
    pub experts_gate: &'static str,
    pub experts_up: &'static str,
    pub experts_down: &'static str,
    /// Gate and up of all experts of a layer in one tensor, with its ending.
    pub experts_gate_up: &'static str,
    pub experts_layout: ExpertsLayout,
    pub shared_router: &'static str,
    pub shared_gate: &'static str,
    pub shared_up: &'static str,
    /// Gate and up stacked in one tensor.
    pub shared_gate_up: &'static str,
    pub shared_down: &'static str,
    /// Name of the sinks, with its ending.
    pub router_scale: &'static str,
    /// Name of the sinks, with its ending.
    pub expert_scales: &'static str,
    pub pre_experts_norm: &'static str,
    pub post_experts_norm: &'static str,
    pub post_shared_norm: &'static str,
    pub per_layer_gate: &'static str,
    pub per_layer_projection: &'static str,
    pub per_layer_post_norm: &'static str,
    /// Name of the scalar, with or without an ending.
    pub scalar: &'static str,
    pub recurrent: RecurrentNames,
}

/// Layout of a tensor of all experts.
#[derive(Debug, Clone, Copy)]
pub struct ExpertsLayout {
    /// `[experts, in, out]` instead of `[experts, out, in]`.
    pub is_transposed: bool,
    /// Whether rows of gate and up alternate; otherwise those of gate precede those of up.
    pub is_interleaved: bool,
}

impl ExpertsLayout {
    /// `[experts, out, in]`, gate stacked on up.
    pub const ROWS: Self = Self { is_transposed: false, is_interleaved: false };
}

/// Names of recurrent mixers' tensors in one kind of file.
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields are the tensors")]
pub struct RecurrentNames {
    /// Projection to all inputs of the mixer; of a gated delta net, to queries, keys and values.
    pub input: &'static str,
    pub delta_gate: &'static str,
    pub delta_strength: &'static str,
    pub delta_time: &'static str,
    /// Queries, keys, values and gates, grouped by head of keys.
    pub delta_by_head: &'static str,
    /// Strengths and times in the same order.
    pub gates_by_head: &'static str,
    pub conv: &'static str,
    /// Name with its ending, as the next two.
    pub decay: &'static str,
    /// Whether that is the logarithm of the negative rate.
    pub decay_is_logarithm: bool,
    pub time_bias: &'static str,
    pub skip: &'static str,
    pub norm: &'static str,
    pub output: &'static str,
}

/// A family without recurrent mixers.
pub(super) const NO_RECURRENT: RecurrentNames = RecurrentNames {
    input: "",
    delta_gate: "",
    delta_strength: "",
    delta_time: "",
    delta_by_head: "",
    gates_by_head: "",
    conv: "",
    decay: "",
    decay_is_logarithm: true,
    time_bias: "",
    skip: "",
    norm: "",
    output: "",
};

/// Llama's names, as most safetensors checkpoints have them.
pub(super) const HF_LAYER: LayerNames = LayerNames {
    pre_attention_norm: "input_layernorm",
    post_attention_norm: "",
    pre_feed_forward_norm: "post_attention_layernorm",
    post_feed_forward_norm: "",
    query: "self_attn.q_proj",
    key: "self_attn.k_proj",
    value: "self_attn.v_proj",
    query_key_value: "self_attn.qkv_proj",
    attention_output: "self_attn.o_proj",
    attention_gate: "self_attn.gate_proj",
    relative_query: "",
    relative_key: "",
    query_compression: "self_attn.q_a_proj",
    query_compression_norm: "self_attn.q_a_layernorm",
    query_expansion: "self_attn.q_b_proj",
    key_value_compression: "self_attn.kv_a_proj_with_mqa",
    key_value_compression_norm: "self_attn.kv_a_layernorm",
    key_value_expansion: "self_attn.kv_b_proj",
    key_expansion: "",
    value_expansion: "",
    index_query: "self_attn.indexer.wq_b",
    index_key: "self_attn.indexer.wk",
    index_key_norm: "self_attn.indexer.k_norm",
    index_weights: "self_attn.indexer.weights_proj",
    sinks: "self_attn.sinks",
    query_norm: "self_attn.q_norm",
    key_norm: "self_attn.k_norm",
    gate: "mlp.gate_proj",
    up: "mlp.up_proj",
    gate_up: "mlp.gate_up_proj",
    up_gate: "",
    down: "mlp.down_proj",
    router: "mlp.gate",
    router_bias: "mlp.gate.e_score_correction_bias",
    latent_down: "",
    latent_up: "",
    expert_gate: "mlp.experts.{}.gate_proj",
    expert_up: "mlp.experts.{}.up_proj",
    expert_down: "mlp.experts.{}.down_proj",
    experts_gate: "",
    experts_up: "",
    experts_down: "",
    experts_gate_up: "",
    experts_layout: ExpertsLayout::ROWS,
    shared_router: "mlp.shared_expert_gate",
    shared_gate: "mlp.shared_expert.gate_proj",
    shared_up: "mlp.shared_expert.up_proj",
    shared_gate_up: "",
    shared_down: "mlp.shared_expert.down_proj",
    recurrent: NO_RECURRENT,
    router_scale: "",
    expert_scales: "",
    pre_experts_norm: "",
    post_experts_norm: "",
    post_shared_norm: "",
    per_layer_gate: "per_layer_input_gate",
    per_layer_projection: "per_layer_projection",
    per_layer_post_norm: "post_per_layer_input_norm",
    scalar: "layer_scalar",
};

/// Gemma's layers have a norm before and after each block.
pub(super) const HF_GEMMA_LAYER: LayerNames = LayerNames {
    post_attention_norm: "post_attention_layernorm",
    pre_feed_forward_norm: "pre_feedforward_layernorm",
    post_feed_forward_norm: "post_feedforward_layernorm",
    ..HF_LAYER
};

/// A model whose layers have these names, and all else as in Llama.
pub(super) const fn hf(layer: LayerNames) -> TensorNames {
    TensorNames {
        embedding: "model.embed_tokens",
        final_norm: "model.norm",
        output: "lm_head",
        per_layer_embedding: "model.embed_tokens_per_layer",
        per_layer_projection: "model.per_layer_model_projection",
        per_layer_norm: "model.per_layer_projection_norm",
        positions: "",
        segments: "",
        embedding_norm: "",
        relative: "",
        relative_norm: "",
        layer_prefix: "model.layers.",
        layer,
    }
}

/// Llama's names.
pub(super) static HF: TensorNames = hf(HF_LAYER);

/// GGUF's names, nearly the same for all families (llama.cpp, gguf-py/gguf/constants.py).
pub(super) static GGUF: TensorNames = gguf(GGUF_LAYER);

/// Some families' files call the norm before the feed-forward by its place after attention.
pub(super) static GGUF_POST_ATTENTION_NORM: TensorNames =
    gguf(LayerNames { post_attention_norm: "", pre_feed_forward_norm: "post_attention_norm", ..GGUF_LAYER });

pub(super) const fn gguf(layer: LayerNames) -> TensorNames {
    TensorNames {
        embedding: "token_embd",
        final_norm: "output_norm",
        output: "output",
        per_layer_embedding: "per_layer_token_embd",
        per_layer_projection: "per_layer_model_proj",
        per_layer_norm: "per_layer_proj_norm",
        positions: "position_embd",
        segments: "token_types",
        embedding_norm: "token_embd_norm",
        relative: "",
        relative_norm: "",
        layer_prefix: "blk.",
        layer,
    }
}

pub(super) const GGUF_LAYER: LayerNames = LayerNames {
    pre_attention_norm: "attn_norm",
    post_attention_norm: "post_attention_norm",
    pre_feed_forward_norm: "ffn_norm",
    post_feed_forward_norm: "post_ffw_norm",
    query: "attn_q",
    key: "attn_k",
    value: "attn_v",
    query_key_value: "attn_qkv",
    attention_output: "attn_output",
    attention_gate: "attn_gate",
    relative_query: "",
    relative_key: "",
    query_compression: "attn_q_a",
    query_compression_norm: "attn_q_a_norm",
    query_expansion: "attn_q_b",
    key_value_compression: "attn_kv_a_mqa",
    key_value_compression_norm: "attn_kv_a_norm",
    key_value_expansion: "attn_kv_b",
    key_expansion: "attn_k_b",
    value_expansion: "attn_v_b",
    index_query: "",
    index_key: "",
    index_key_norm: "",
    index_weights: "",
    sinks: "attn_sinks.weight",
    query_norm: "attn_q_norm",
    key_norm: "attn_k_norm",
    gate: "ffn_gate",
    up: "ffn_up",
    // The same name as `up`; the shapes differ.
    gate_up: "ffn_up",
    up_gate: "",
    down: "ffn_down",
    router: "ffn_gate_inp",
    router_bias: "exp_probs_b.bias",
    latent_down: "ffn_latent_down",
    latent_up: "ffn_latent_up",
    expert_gate: "ffn_gate.{}",
    expert_up: "ffn_up.{}",
    expert_down: "ffn_down.{}",
    experts_gate: "ffn_gate_exps",
    experts_up: "ffn_up_exps",
    experts_down: "ffn_down_exps",
    experts_gate_up: "",
    experts_layout: ExpertsLayout::ROWS,
    shared_router: "ffn_gate_inp_shexp",
    shared_gate: "ffn_gate_shexp",
    shared_up: "ffn_up_shexp",
    shared_gate_up: "",
    shared_down: "ffn_down_shexp",
    router_scale: "ffn_gate_inp.scale",
    expert_scales: "ffn_down_exps.scale",
    pre_experts_norm: "pre_ffw_norm_2",
    post_experts_norm: "post_ffw_norm_2",
    post_shared_norm: "post_ffw_norm_1",
    per_layer_gate: "inp_gate",
    per_layer_projection: "proj",
    per_layer_post_norm: "post_norm",
    scalar: "layer_output_scale",
    recurrent: GGUF_RECURRENT,
};

pub(super) const GGUF_RECURRENT: RecurrentNames = RecurrentNames {
    input: "ssm_in",
    conv: "ssm_conv1d",
    decay: "ssm_a",
    decay_is_logarithm: false,
    time_bias: "ssm_dt.bias",
    skip: "ssm_d",
    norm: "ssm_norm",
    output: "ssm_out",
    ..NO_RECURRENT
};
