//! Every family as the GGUF file that llama.cpp's converter would write for its fixture: keys, names,
//! permuted rows, stacked experts, norm gains with 1 added. Converted here by the rules of
//! convert_hf_to_gguf.py, and compared with the same logits of transformers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::harness::{LIMITS, OneSequence};
use safetensors::SafeTensors;
use serde_json::Value;
use throng_checkpoint::gguf::GgufValue;
use throng_checkpoint::gguf::writer::{TensorToWrite, write};
use throng_core::request::{AdapterId, SamplingParams};
use throng_kernels::quant::Format;
use throng_model::adapter::AdapterLimits;
use throng_model::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, load};

struct Tensor {
    shape: Vec<usize>,
    data: Vec<f32>,
}

/// A fixture's files.
struct Checkpoint {
    config: Value,
    tensors: BTreeMap<String, Tensor>,
    input_ids: Vec<u32>,
    /// `[48, vocabulary]`.
    logits: Vec<f32>,
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

impl Checkpoint {
    fn read(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        let read = |file: &str| std::fs::read(folder.join(file)).unwrap();
        let bytes = read("model.safetensors");
        let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
        let tensor = |view: &safetensors::tensor::TensorView<'_>| Tensor {
            shape: view.shape().to_vec(),
            data: floats(view.data()),
        };
        let expected = read("expected.safetensors");
        let expected = SafeTensors::deserialize(&expected).unwrap();
        let ids = expected.tensor("input_ids").unwrap().data().to_vec();
        let config: Value = serde_json::from_slice(&read("config.json")).unwrap();
        let of_text = |name: &str| !name.starts_with("mtp.") && !name.starts_with("model.visual.");
        let text_name = |name: &str| name.replace("model.language_model.", "model.");
        let tensors = tensors.iter().filter(|(name, _)| of_text(name));
        Self {
            config: config.get("text_config").cloned().unwrap_or(config),
            tensors: tensors.map(|(name, view)| (text_name(name), tensor(view))).collect(),
            input_ids: ids.as_chunks::<8>().0.iter().map(|id| i64::from_le_bytes(*id) as u32).collect(),
            logits: floats(expected.tensor("logits").unwrap().data()),
        }
    }

    fn size(&self, key: &str) -> Option<usize> {
        self.config[key].as_u64().map(|size| size as usize)
    }

    fn head_dim(&self) -> usize {
        self.size("head_dim")
            .unwrap_or_else(|| self.size("hidden_size").unwrap() / self.size("num_attention_heads").unwrap())
    }

    /// A parameter of the rope, in either spelling.
    fn rope(&self, key: &str) -> Option<&Value> {
        let new = &self.config["rope_parameters"];
        let (full, old) = (&new["full_attention"], &self.config["rope_scaling"]);
        [&new[key], &full[key], &old[key], &self.config[key]].into_iter().find(|value| !value.is_null())
    }
}

/// How a family is converted.
#[derive(Default)]
struct Rules {
    architecture: &'static str,
    /// Rows of Q and K are permuted so that rope rotates neighbouring columns.
    permuted: bool,
    /// 1 is added to norm gains.
    gain_offset: f32,
    /// Norms after attention and feed-forward; then `post_attention_layernorm` is not the norm before the
    /// feed-forward.
    post_norms: bool,
}

fn rules(architecture: &'static str) -> Rules {
    let gemma = architecture.starts_with("gemma");
    let delta = ["qwen3next", "qwen35", "qwen35moe"].contains(&architecture);
    Rules {
        architecture,
        permuted: ["llama", "granite", "granitemoe", "minicpm", "smollm3"].contains(&architecture),
        gain_offset: if gemma || delta { 1.0 } else { 0.0 },
        post_norms: (gemma && architecture != "gemma")
            || delta
            || ["olmo2", "glm4moe", "seed_oss", "gpt-oss", "exaone4"].contains(&architecture),
    }
}

/// The name in a GGUF file; experts are stacked elsewhere.
fn gguf_name(name: &str, rules: &Rules) -> String {
    let whole = [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        ("model.norm.bias", "output_norm.bias"),
        ("lm_head.weight", "output.weight"),
        ("lm_head.bias", "output.bias"),
        ("model.embedding_norm.weight", "token_embd_norm.weight"),
    ];
    if let Some((_, to)) = whole.iter().find(|(from, _)| *from == name) {
        return (*to).to_owned();
    }
    let after_attention = if rules.post_norms { "post_attention_norm" } else { "ffn_norm" };
    let parts = [
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", after_attention),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("post_self_attn_layernorm", "post_attention_norm"),
        ("post_mlp_layernorm", "post_ffw_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.qkv_proj", "attn_qkv"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.gate_up_proj", "ffn_up"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("mlp.gate", "ffn_gate_inp"),
        ("mlp.router", "ffn_gate_inp"),
        ("block_sparse_moe.gate", "ffn_gate_inp"),
        ("block_sparse_moe.router.layer", "ffn_gate_inp"),
        ("mlp.gate.wg", "ffn_gate_inp"),
        ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
        ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
        ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
        ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
        ("linear_attn.in_proj_qkvz", "ssm_in"),
        ("linear_attn.in_proj_ba", "ssm_ba"),
        ("linear_attn.in_proj_qkv", "attn_qkv"),
        ("linear_attn.in_proj_z", "attn_gate"),
        ("linear_attn.in_proj_b", "ssm_beta"),
        ("linear_attn.in_proj_a", "ssm_alpha"),
        ("linear_attn.conv1d", "ssm_conv1d"),
        ("linear_attn.norm", "ssm_norm"),
        ("linear_attn.out_proj", "ssm_out"),
        ("operator_norm", "attn_norm"),
        ("ffn_norm", "ffn_norm"),
        ("self_attn.out_proj", "attn_output"),
        ("self_attn.query_layernorm", "attn_q_norm"),
        ("self_attn.key_layernorm", "attn_k_norm"),
        ("self_attn.q_layernorm", "attn_q_norm"),
        ("self_attn.k_layernorm", "attn_k_norm"),
        ("feed_forward.w1", "ffn_gate"),
        ("feed_forward.w2", "ffn_down"),
        ("feed_forward.w3", "ffn_up"),
        ("feed_forward.gate", "ffn_gate_inp"),
        ("conv.in_proj", "shortconv.in_proj"),
        ("conv.conv", "shortconv.conv"),
        ("conv.out_proj", "shortconv.out_proj"),
    ];
    let name = name.replace("shared_experts", "shared_expert").replace("shared_mlp", "shared_expert");
    let (layer, rest) = name.strip_prefix("model.layers.").unwrap().split_once('.').unwrap();
    let (stem, kind) = rest.rsplit_once('.').unwrap();
    match kind {
        "e_score_correction_bias" | "expert_bias" => return format!("blk.{layer}.exp_probs_b.bias"),
        "A_log" => return format!("blk.{layer}.ssm_a"),
        "dt_bias" => return format!("blk.{layer}.ssm_dt.bias"),
        "sinks" => return format!("blk.{layer}.attn_sinks.weight"),
        _ => {}
    }
    let (_, to) =
        parts.iter().find(|(from, _)| *from == stem).unwrap_or_else(|| panic!("{name} has no name"));
    format!("blk.{layer}.{to}.{kind}")
}

/// `reshape(n_heads, 2, head_dim / 2, cols).swapaxes(1, 2)`, of a matrix or a bias.
fn permute(tensor: &Tensor, head_dim: usize) -> Tensor {
    let cols = tensor.shape.get(1).copied().unwrap_or(1);
    let mut data = vec![0.0; tensor.data.len()];
    for row in 0..tensor.shape[0] {
        let (head, within) = (row / head_dim, row % head_dim);
        let (half, pair) = (within / (head_dim / 2), within % (head_dim / 2));
        let to = (head * head_dim + 2 * pair + half) * cols;
        data[to..to + cols].copy_from_slice(&tensor.data[row * cols..][..cols]);
    }
    Tensor { shape: tensor.shape.clone(), data }
}

/// The heads of values in the order `[n, key heads]` instead of `[key heads, n]`: rows, elements, or columns
/// of the output.
fn tile_value_heads(checkpoint: &Checkpoint, name: &str, tensor: &mut Tensor) {
    let size = |key: &str| checkpoint.size(key).unwrap();
    let (n_key_heads, n_heads) = (size("linear_num_key_heads"), size("linear_num_value_heads"));
    let head_dim = size("linear_value_head_dim");
    let key_rows = 2 * n_key_heads * size("linear_key_head_dim");
    // Elements of a head, where the first stands, and how far those of the next row are.
    let n_rows = tensor.shape[0];
    let (first, head, stride) = match name.rsplit('.').nth(1).unwrap() {
        "in_proj_qkv" | "conv1d" => {
            let row = tensor.data.len() / n_rows;
            (key_rows * row, head_dim * row, tensor.data.len())
        }
        "in_proj_z" => (0, head_dim * tensor.data.len() / n_rows, tensor.data.len()),
        "in_proj_a" | "in_proj_b" => (0, tensor.data.len() / n_rows, tensor.data.len()),
        "out_proj" => (0, head_dim, n_heads * head_dim),
        "linear_attn" => (0, 1, tensor.data.len()),
        _ => return,
    };
    for row in tensor.data.chunks_mut(stride) {
        let before = row.to_vec();
        for to in 0..n_heads {
            let from = to % n_key_heads * (n_heads / n_key_heads) + to / n_key_heads;
            let elements = &before[first + from * head..][..head];
            row[first + to * head..][..head].copy_from_slice(elements);
        }
    }
}

fn convert(checkpoint: &Checkpoint, rules: &Rules) -> BTreeMap<String, Tensor> {
    let mut converted: BTreeMap<String, Tensor> = BTreeMap::new();
    let beyond = format!("model.layers.{}.", checkpoint.size("num_hidden_layers").unwrap());
    for (name, tensor) in checkpoint.tensors.iter().filter(|(name, _)| !name.starts_with(&beyond)) {
        if let Some((layer, rest)) = name.split_once(".experts.").or_else(|| name.split_once("_moe.experts."))
        {
            if !rest.contains('.') {
                let layer = layer.split('.').nth(2).unwrap();
                converted.extend(match rules.architecture {
                    "qwen35moe" => split_stacked_experts(layer, rest, tensor),
                    _ => split_experts(layer, rest, tensor),
                });
                continue;
            }
            // The tensors come in order of name; there are fewer than ten experts, so in order of expert.
            let projection = rest.split_once('.').unwrap().1.trim_end_matches(".weight");
            let to = match projection {
                "gate_proj" | "w1" => "ffn_gate_exps",
                "up_proj" | "w3" => "ffn_up_exps",
                _ => "ffn_down_exps",
            };
            let layer = layer.split('.').nth(2).unwrap();
            let whole = converted.entry(format!("blk.{layer}.{to}.weight")).or_insert_with(|| Tensor {
                shape: [&[0], tensor.shape.as_slice()].concat(),
                data: Vec::new(),
            });
            whole.shape[0] += 1;
            whole.data.extend_from_slice(&tensor.data);
            continue;
        }
        if name.contains("_linear.weight") {
            converted.extend(split_linear(name, tensor));
            continue;
        }
        let is_query_or_key = name.contains("q_proj") || name.contains("k_proj");
        let mut tensor = match rules.permuted && is_query_or_key {
            true => permute(tensor, checkpoint.head_dim()),
            false => Tensor { shape: tensor.shape.clone(), data: tensor.data.clone() },
        };
        if name.ends_with("A_log") {
            tensor.data.iter_mut().for_each(|rate| *rate = -rate.exp());
        }
        if rules.architecture.starts_with("qwen35") && name.contains("linear_attn.") {
            tile_value_heads(checkpoint, name, &mut tensor);
        }
        if name.ends_with("norm.weight") && !name.ends_with("linear_attn.norm.weight") {
            tensor.data.iter_mut().for_each(|gain| *gain += rules.gain_offset);
        }
        // A convolution's dimension between channels and taps is left out.
        tensor.shape.retain(|n| *n != 1);
        if name.contains("shared_expert_gate") {
            tensor.shape = vec![tensor.data.len()];
        }
        converted.insert(gguf_name(name, rules), tensor);
    }
    converted.extend(rope_tensors(checkpoint));
    converted
}

/// The experts of gpt-oss: `[experts, in, out]`, rows of gate and up alternating, and their biases.
fn split_experts(layer: &str, name: &str, tensor: &Tensor) -> Vec<(String, Tensor)> {
    let is_bias = name.ends_with("_bias");
    let [n_experts, cols, n_rows] = match *tensor.shape {
        [n_experts, n_rows] => [n_experts, 1, n_rows],
        [n_experts, cols, n_rows] => [n_experts, cols, n_rows],
        _ => panic!("{name} has shape {:?}", tensor.shape),
    };
    let parts: &[(&str, usize, usize)] = match name.starts_with("gate_up") {
        true => &[("ffn_gate_exps", 0, 2), ("ffn_up_exps", 1, 2)],
        false => &[("ffn_down_exps", 0, 1)],
    };
    let part = |&(to, first, step): &(&str, usize, usize)| {
        let element = |expert: usize, row: usize, col: usize| {
            tensor.data[(expert * cols + col) * n_rows + first + row * step]
        };
        let n_own = n_rows / step;
        let rows = (0..n_experts).flat_map(|expert| (0..n_own).map(move |row| (expert, row)));
        let data = rows.flat_map(|(expert, row)| (0..cols).map(move |col| element(expert, row, col)));
        let shape = if is_bias { vec![n_experts, n_own] } else { vec![n_experts, n_own, cols] };
        let kind = if is_bias { "bias" } else { "weight" };
        (format!("blk.{layer}.{to}.{kind}"), Tensor { shape, data: data.collect() })
    };
    parts.iter().map(part).collect()
}

/// The experts of Qwen 3.5: `[experts, out, in]`, the rows of gate before those of up.
fn split_stacked_experts(layer: &str, name: &str, tensor: &Tensor) -> Vec<(String, Tensor)> {
    let [n_experts, n_rows, cols] = tensor.shape[..] else { panic!("{name} has shape {:?}", tensor.shape) };
    let parts: &[&str] =
        if name == "gate_up_proj" { &["ffn_gate_exps", "ffn_up_exps"] } else { &["ffn_down_exps"] };
    let (n_own, len) = (n_rows / parts.len(), n_rows / parts.len() * cols);
    let part = |(i, to): (usize, &&str)| {
        let experts = tensor.data.chunks_exact(n_rows * cols);
        let data = experts.flat_map(|expert| &expert[i * len..][..len]).copied().collect();
        (format!("blk.{layer}.{to}.weight"), Tensor { shape: vec![n_experts, n_own, cols], data })
    };
    parts.iter().enumerate().map(part).collect()
}

/// Granite's experts, and the feed-forward beside them: rows of gate before those of up.
fn split_linear(name: &str, tensor: &Tensor) -> Vec<(String, Tensor)> {
    let layer = name.split('.').nth(2).unwrap();
    let (projection, suffix) = match name.contains("input_linear") {
        true => ("gate_up_proj", if tensor.shape.len() == 3 { "exps" } else { "shexp" }),
        false => ("down_proj", if tensor.shape.len() == 3 { "exps" } else { "shexp" }),
    };
    let [.., n_rows, cols] = tensor.shape[..] else { panic!("{name} has shape {:?}", tensor.shape) };
    let shape = vec![tensor.data.len() / (n_rows * cols), n_rows, cols];
    let parts = split_stacked_experts(layer, projection, &Tensor { shape, data: tensor.data.clone() });
    let part = |(to, mut part): (String, Tensor)| {
        part.shape.drain(..3 - tensor.shape.len());
        (to.replace("exps", suffix), part)
    };
    parts.into_iter().map(part).collect()
}

/// Rope scalings that GGUF stores as a divisor of each frequency.
fn rope_tensors(checkpoint: &Checkpoint) -> Vec<(String, Tensor)> {
    let number = |key: &str| checkpoint.rope(key).and_then(Value::as_f64);
    let tensor = |data: Vec<f32>| Tensor { shape: vec![data.len()], data };
    let list = |key: &str| -> Option<Vec<f32>> {
        let list = checkpoint.rope(key)?.as_array()?;
        Some(list.iter().map(|value| value.as_f64().unwrap() as f32).collect())
    };
    let mut tensors = Vec::new();
    for (key, name) in [("long_factor", "rope_factors_long"), ("short_factor", "rope_factors_short")] {
        tensors.extend(list(key).map(|factors| (format!("{name}.weight"), tensor(factors))));
    }
    if let (Some(low), Some(high)) = (number("low_freq_factor"), number("high_freq_factor")) {
        let factor = number("factor").unwrap();
        let original = number("original_max_position_embeddings").unwrap();
        let head_dim = checkpoint.head_dim();
        let factors = (0..head_dim / 2).map(|i| {
            let theta = number("rope_theta").unwrap();
            let length = 2.0 * std::f64::consts::PI * theta.powf(2.0 * i as f64 / head_dim as f64);
            let smooth = (original / length - low) / (high - low);
            match length {
                _ if length < original / high => 1.0,
                _ if length > original / low => factor as f32,
                _ => (1.0 / ((1.0 - smooth) / factor + smooth)) as f32,
            }
        });
        tensors.push(("rope_freqs.weight".to_owned(), tensor(factors.collect())));
    }
    tensors
}

fn metadata(checkpoint: &Checkpoint, rules: &Rules) -> Vec<(String, GgufValue)> {
    let mut metadata =
        vec![("general.architecture".to_owned(), GgufValue::String(rules.architecture.to_owned()))];
    let mut set =
        |key: &str, value: GgufValue| metadata.push((format!("{}.{key}", rules.architecture), value));
    let sizes = [
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("block_count", "num_hidden_layers"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.sliding_window", "sliding_window"),
        ("expert_count", "num_experts"),
        ("expert_count", "num_local_experts"),
        ("expert_count", "n_routed_experts"),
        ("expert_count", "moe_num_experts"),
        ("expert_used_count", "moe_k"),
        ("expert_shared_count", "moe_num_shared_experts"),
        ("expert_shared_count", "n_shared_experts"),
        ("rope.dimension_count", "rotary_dim"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
        ("expert_shared_feed_forward_length", "shared_intermediate_size"),
        ("shortconv.l_cache", "conv_L_cache"),
        ("ssm.conv_kernel", "linear_conv_kernel_dim"),
        ("ssm.state_size", "linear_key_head_dim"),
        ("ssm.group_count", "linear_num_key_heads"),
        ("ssm.time_step_rank", "linear_num_value_heads"),
        ("rope.scaling.original_context_length", "original_max_position_embeddings"),
    ];
    for (to, from) in sizes {
        if let Some(size) = checkpoint.size(from) {
            set(to, GgufValue::U32(size as u32));
        }
    }
    if let Some(head_dim) = checkpoint.size("linear_value_head_dim") {
        let n_heads = checkpoint.size("linear_num_value_heads").unwrap();
        set("ssm.inner_size", GgufValue::U32((n_heads * head_dim) as u32));
    }
    let first_gate = checkpoint.tensors.get("model.layers.0.feed_forward.w1.weight");
    if let Some(gate) = first_gate.filter(|_| checkpoint.size("intermediate_size").is_none()) {
        // Its rule in config.json is applied by the converter.
        set("feed_forward_length", GgufValue::U32(gate.shape[0] as u32));
    }
    set("attention.key_length", GgufValue::U32(checkpoint.head_dim() as u32));
    let numbers = [
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("attention.layer_norm_rms_epsilon", "norm_eps"),
        ("attention.layer_norm_epsilon", "layer_norm_eps"),
        ("logit_scale", "logit_scale"),
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("attention.scale", "attention_multiplier"),
        ("logit_scale", "logits_scaling"),
        ("rope.freq_base", "rope_theta"),
        ("expert_weights_scale", "routed_scaling_factor"),
    ];
    for (to, from) in numbers {
        let is_stretched = from == "rope_theta" && checkpoint.rope("alpha").is_some();
        if let Some(number) = checkpoint.rope(from).and_then(Value::as_f64).filter(|_| !is_stretched) {
            set(to, GgufValue::F32(number as f32));
        }
    }
    let number = |key: &str| checkpoint.rope(key).and_then(Value::as_f64);
    if let Some(n_used) = checkpoint.config["moe_topk"][0].as_u64() {
        set("expert_used_count", GgufValue::U32(n_used as u32));
    }
    if let Some(alpha) = number("alpha") {
        let n = checkpoint.head_dim() as f64;
        let base = number("rope_theta").unwrap() * alpha.powf(n / (n - 2.0));
        set("rope.freq_base", GgufValue::F32(base as f32));
    }
    let kind = checkpoint.rope("rope_type").or(checkpoint.rope("type")).and_then(Value::as_str);
    if let Some(kind @ ("linear" | "yarn")) = kind {
        set("rope.scaling.type", GgufValue::String(kind.to_owned()));
        set("rope.scaling.factor", GgufValue::F32(number("factor").unwrap() as f32));
        if let Some(original) = number("original_max_position_embeddings") {
            set("rope.scaling.original_context_length", GgufValue::U32(original as u32));
        }
    }
    if kind == Some("longrope") {
        let original = number("original_max_position_embeddings").unwrap();
        let factor = number("max_position_embeddings").unwrap() / original;
        let amplitude = number("long_mscale").unwrap_or((1.0 + factor.ln() / original.ln()).sqrt());
        set("rope.scaling.attn_factor", GgufValue::F32(amplitude as f32));
    }
    if let Some(share) = number("partial_rotary_factor") {
        set("rope.dimension_count", GgufValue::U32((checkpoint.head_dim() as f64 * share) as u32));
    }
    metadata
}

fn to_gguf(checkpoint: &Checkpoint, rules: &Rules, path: &PathBuf) {
    let tensors = convert(checkpoint, rules);
    let bytes: Vec<Vec<u8>> =
        tensors.values().map(|tensor| tensor.data.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
    let tensors: Vec<_> = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, tensor), data)| TensorToWrite { name, shape: &tensor.shape, format: Format::F32, data })
        .collect();
    let metadata = metadata(checkpoint, rules);
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    std::fs::write(path, write(3, &metadata, &tensors)).unwrap();
}

#[test]
fn gguf_files_of_all_families_give_the_logits_of_transformers() {
    let families = [
        ("llama", "llama"),
        ("llama3-rope-tied", "llama"),
        ("llama-linear-bias", "llama"),
        ("mixtral", "llama"),
        ("qwen2", "qwen2"),
        ("qwen2-yarn", "qwen2"),
        ("qwen2-moe", "qwen2moe"),
        ("qwen3", "qwen3"),
        ("qwen2", "qwen2vl"),
        ("qwen3", "qwen3vl"),
        ("qwen3-moe", "qwen3moe"),
        ("gemma", "gemma"),
        ("gemma2", "gemma2"),
        ("gemma3", "gemma3"),
        ("phi3", "phi3"),
        ("phi3-longrope", "phi3"),
        ("olmo2", "olmo2"),
        ("olmo3", "olmo2"),
        ("ernie4_5", "ernie4_5"),
        ("glm4", "glm4"),
        ("glm4-moe", "glm4moe"),
        ("gpt-oss", "gpt-oss"),
        ("minimax-m2", "minimax-m2"),
        ("qwen2", "seed_oss"),
        ("smollm3", "smollm3"),
        ("granite", "granite"),
        ("granite", "minicpm"),
        ("internlm3", "llama"),
        ("lfm2", "lfm2"),
        ("lfm2-moe", "lfm2moe"),
        ("qwen3-next", "qwen3next"),
        ("qwen3-5", "qwen35"),
        ("qwen3-5-moe", "qwen35moe"),
        ("cohere", "command-r"),
        ("cohere-qk-norm", "command-r"),
        ("cohere2", "cohere2"),
        ("exaone4", "exaone4"),
        ("ernie4_5-moe", "ernie4_5-moe"),
        ("hunyuan-dense", "hunyuan-dense"),
        ("hunyuan-moe", "hunyuan-moe"),
        ("phimoe", "phimoe"),
        ("granite-moe", "granitemoe"),
        ("granite-moe-shared", "granitemoe"),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (fixture, architecture) in families {
        let checkpoint = Checkpoint::read(fixture);
        let path = folder.path().join(format!("{fixture}.gguf"));
        to_gguf(&checkpoint, &rules(architecture), &path);
        let model =
            load(&path, &LoadOptions { prepare: None, n_threads: 1, quantize: None }, &mut |_| {}).unwrap();
        let worst = largest_distance(&model, &checkpoint.input_ids, &checkpoint.logits, None);
        println!("{fixture} as {architecture}: off by {worst:.1e}");
        assert!(worst < 2e-4, "{fixture}: {worst}");
    }
}

/// A file that leaves MiniCPM's multipliers to the program is not computed with others.
#[test]
fn minicpm_without_its_multipliers_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("minicpm.gguf");
    to_gguf(&Checkpoint::read("llama"), &rules("minicpm"), &path);
    let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
    let error = load(&path, &options, &mut |_| {}).map(drop).unwrap_err();
    assert!(format!("{error:?}").contains("minicpm.embedding_scale"), "{error:?}");
}

/// The converter reorders the rows of Llama's queries and keys; an adapter's rows have the order of
/// transformers.
#[test]
fn adapters_change_converted_models_as_they_change_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    for (base, adapter) in [("llama", "llama-r8"), ("qwen3", "qwen3-r4-rslora")] {
        let checkpoint = Checkpoint::read(base);
        let path = folder.path().join(format!("{base}.gguf"));
        to_gguf(&checkpoint, &rules(base), &path);
        let model =
            load(&path, &LoadOptions { prepare: None, n_threads: 1, quantize: None }, &mut |_| {}).unwrap();
        let adapter = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/adapters").join(adapter);
        let expected = std::fs::read(adapter.join("expected.safetensors")).unwrap();
        let expected = SafeTensors::deserialize(&expected).unwrap();
        let logits = floats(expected.tensor("logits").unwrap().data());
        let adapter = model.load_adapter(BackendKind::Reference, &adapter, AdapterLimits::default()).unwrap();
        let worst = largest_distance(&model, &checkpoint.input_ids, &logits, Some(adapter.id));
        assert!(worst < 1e-4, "{base}: {worst}");
    }
}

/// The largest distance of a log-probability from what the logits say.
fn largest_distance(
    model: &LoadedModel,
    input_ids: &[u32],
    logits: &[f32],
    adapter: Option<AdapterId>,
) -> f64 {
    let vocabulary = model.config.vocabulary_size;
    let options = RunnerOptions { backend: BackendKind::Reference, n_threads: 1, limits: LIMITS };
    let sampling = SamplingParams {
        logprobs: Some(vocabulary as u32),
        prompt_logprobs: Some(vocabulary as u32),
        ..Default::default()
    };
    let mut rows = logits.chunks(vocabulary);
    let mut worst = 0.0f64;
    let mut runner = model.runner(&options).unwrap();
    let sequence = OneSequence::new(input_ids, Arc::new(sampling));
    let mut sequence = match adapter {
        None => sequence,
        Some(adapter) => sequence.with_adapter(adapter),
    };
    sequence.prefill(&mut *runner, 48, |report| {
        let logits = rows.next().unwrap();
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        for top in report.top {
            let expected = f64::from(logits[top.token as usize]) - sum.ln();
            worst = worst.max((f64::from(top.logprob) - expected).abs());
        }
    });
    assert!(rows.next().is_none());
    worst
}
