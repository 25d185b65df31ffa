//! Nemotron-H and Nemotron 3 (arXiv:2504.03624, arXiv:2512.20848): one block a layer, by a pattern: a state
//! space model, attention without rotation, experts or a network. Networks have no gate and the activation
//! `relu(x)²`, which is the gated network whose gate is the same tensor, since `relu(x)² = relu(x) · x`.

use serde_json::Value;

use super::names::{GGUF, HF_LAYER, LayerNames, NO_RECURRENT, RecurrentNames, TensorNames};
use super::{ConfigError, Family, GgufConfig, HfConfig};
use crate::config::{
    Activation, DecoderConfig, FeedForward, LayerConfig, Mixer, Routing, SharedExpert, StateSpaceShape,
};
use crate::python_json;

pub(super) const FAMILY: Family = Family {
    model_type: "nemotron_h",
    aliases: &[],
    gguf_architectures: &[],
    from_hf,
    from_gguf,
    hf_names: &NAMES,
    gguf_names: &GGUF,
};

static NAMES: TensorNames = TensorNames {
    embedding: "backbone.embeddings",
    final_norm: "backbone.norm_f",
    output: "lm_head",
    per_layer_embedding: "",
    per_layer_projection: "",
    per_layer_norm: "",
    positions: "",
    segments: "",
    embedding_norm: "",
    relative: "",
    relative_norm: "",
    layer_prefix: "backbone.layers.",
    layer: LayerNames {
        pre_attention_norm: "norm",
        pre_feed_forward_norm: "norm",
        query: "mixer.q_proj",
        key: "mixer.k_proj",
        value: "mixer.v_proj",
        query_key_value: "",
        attention_output: "mixer.o_proj",
        gate: "mixer.up_proj",
        up: "mixer.up_proj",
        gate_up: "",
        down: "mixer.down_proj",
        router: "mixer.gate",
        router_bias: "mixer.gate.e_score_correction_bias",
        latent_down: "mixer.fc1_latent_proj",
        latent_up: "mixer.fc2_latent_proj",
        expert_gate: "mixer.experts.{}.up_proj",
        expert_up: "mixer.experts.{}.up_proj",
        expert_down: "mixer.experts.{}.down_proj",
        shared_gate: "mixer.shared_experts.up_proj",
        shared_up: "mixer.shared_experts.up_proj",
        shared_down: "mixer.shared_experts.down_proj",
        recurrent: RecurrentNames {
            input: "mixer.in_proj",
            conv: "mixer.conv1d",
            decay: "mixer.A_log",
            time_bias: "mixer.dt_bias",
            skip: "mixer.D",
            norm: "mixer.norm",
            output: "mixer.out_proj",
            ..NO_RECURRENT
        },
        ..HF_LAYER
    },
};

/// Keys of training and of other implementations. The width of the state space model follows from its heads.
const NO_EFFECT: [&str; 12] = [
    "chunk_size",
    "expand",
    "moe_shared_expert_overlap",
    "num_logits_to_keep",
    "rescale_prenorm_residual",
    "time_step_floor",
    "time_step_max",
    "time_step_min",
    "time_step_rank",
    "mamba_ssm_cache_dtype",
    "use_conv_bias",
    "use_mamba_kernels",
];

fn from_hf(hf: &HfConfig) -> Result<DecoderConfig, ConfigError> {
    let blocks = blocks(hf)?;
    let mut defaults = vec![("num_hidden_layers", blocks.len())];
    // An older name.
    defaults.extend(hf.size("attention_head_dim")?.map(|size| ("head_dim", size)));
    let mut config = hf.with_defaults(&defaults).llama("nemotron_h")?;
    if blocks.len() != config.layers.len() {
        let expected = format!("one for each of the {} layers", config.layers.len());
        return Err(ConfigError::invalid("number of blocks", blocks.len(), expected));
    }
    let eps = hf.number("layer_norm_epsilon")?.or(hf.number("norm_eps")?);
    config.norm_eps = eps.unwrap_or(1e-5) as f32;
    hf.only("mlp_hidden_act", "relu2")?;
    hf.only("mamba_hidden_act", "silu")?;
    config.activation = Activation::Relu;
    config.expert_size = hf.size("moe_latent_size")?;
    config.attentions_mut().for_each(|attention| attention.rope_idx = None);
    for (layer, block) in config.layers.iter_mut().zip(&blocks) {
        *layer = match block {
            Block::StateSpace => {
                LayerConfig { mixer: Mixer::StateSpace(state_space(hf)?), feed_forward: FeedForward::None }
            }
            Block::Attention => LayerConfig { feed_forward: FeedForward::None, ..*layer },
            Block::Experts => LayerConfig { mixer: Mixer::None, feed_forward: experts(hf)? },
            Block::Network => LayerConfig { mixer: Mixer::None, ..*layer },
        };
    }
    let unused: &[&str] = if blocks.contains(&Block::Experts) { &[] } else { &OF_EXPERTS };
    for key in NO_EFFECT.iter().chain(unused) {
        hf.get(key);
    }
    Ok(config)
}

/// Kind of a layer.
#[derive(Clone, Copy, PartialEq)]
enum Block {
    StateSpace,
    Attention,
    Experts,
    Network,
}

/// The blocks by their letters in `hybrid_override_pattern` and by their words in `layers_block_type`, which
/// newer files have instead.
const BLOCKS: [(&str, &str, Block); 4] = [
    ("M", "mamba", Block::StateSpace),
    ("*", "attention", Block::Attention),
    ("E", "moe", Block::Experts),
    ("-", "mlp", Block::Network),
];

fn blocks(hf: &HfConfig) -> Result<Vec<Block>, ConfigError> {
    let letters = hf.get("hybrid_override_pattern").and_then(Value::as_str);
    let words = ["layers_block_type", "layer_types"].into_iter().find_map(|key| hf.get(key)?.as_array());
    let spelled: Vec<String> = match (letters, words) {
        (Some(letters), _) => letters.chars().map(String::from).collect(),
        (None, Some(words)) => {
            words.iter().map(|word| word.as_str().unwrap_or_default().to_owned()).collect()
        }
        (None, None) => return Err(ConfigError::Missing("hybrid_override_pattern".to_owned())),
    };
    let block = |name: &String| {
        let is_named = |(letter, word, _): &&(&str, &str, Block)| name == letter || name == word;
        let found = BLOCKS.iter().find(is_named).map(|(_, _, block)| *block);
        found.ok_or_else(|| {
            let expected = "M, *, E or -, or mamba, attention, moe or mlp";
            ConfigError::invalid("block of a layer", name, expected)
        })
    };
    spelled.iter().map(block).collect()
}

/// Keys about experts, which files of models without any have too.
const OF_EXPERTS: [&str; 9] = [
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "norm_topk_prob",
    "num_experts_per_tok",
    "routed_scaling_factor",
    "topk_group",
];

fn state_space(hf: &HfConfig) -> Result<StateSpaceShape, ConfigError> {
    let n_groups = hf.size("n_groups")?.unwrap_or(1);
    Ok(StateSpaceShape {
        n_heads: hf.required_size("mamba_num_heads")?,
        head_dim: hf.required_size("mamba_head_dim")?,
        n_groups,
        state_dim: hf.required_size("ssm_state_size")?,
        kernel: hf.size("conv_kernel")?.unwrap_or(4),
        n_norm_groups: n_groups,
        time_limits: time_limits(hf)?,
    })
}

/// Bounds of the time of a token, where the file has some.
fn time_limits(hf: &HfConfig) -> Result<[f32; 2], ConfigError> {
    let Some(limits) = hf.get("time_step_limit") else { return Ok([0.0, f32::INFINITY]) };
    match limits.as_array().map(Vec::as_slice) {
        Some([least, most]) => python_json::number(least).zip(python_json::number(most)),
        _ => None,
    }
    .map(|(least, most)| [least as f32, most as f32])
    .ok_or_else(|| ConfigError::invalid("time_step_limit", limits, "two numbers"))
}

fn experts(hf: &HfConfig) -> Result<FeedForward, ConfigError> {
    // Experts are one group.
    hf.only("n_group", "1")?;
    hf.only("topk_group", "1")?;
    hf.only("n_shared_experts", "1")?;
    let routing = Routing {
        normalize: hf.flag("norm_topk_prob")?.unwrap_or(true),
        scale: hf.number("routed_scaling_factor")?.unwrap_or(1.0) as f32,
        ..Routing::sigmoid(hf.required_size("num_experts_per_tok")?, true)
    };
    let shared = hf.required_size("moe_shared_expert_intermediate_size")?;
    Ok(FeedForward::Experts {
        n_experts: hf.required_size("n_routed_experts")?,
        width: hf.required_size("moe_intermediate_size")?,
        routing,
        shared: Some(SharedExpert { width: shared, is_gated: false, has_norms: false }),
    })
}

fn from_gguf(gguf: &GgufConfig<'_>) -> Result<DecoderConfig, ConfigError> {
    Err(ConfigError::not_supported(gguf.architecture()))
}
