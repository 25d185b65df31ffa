//! Fields about the making of a checkpoint and its intended engine: they do not change how weights are read.
//! Does not know formats.

use super::SchemeError;
use super::fields::Fields;

/// Fields that do not change how weights are read: how the checkpoint was calibrated, and how activations,
/// keys and values would be quantized. Whether a layer is symmetric is read from its zero points, and whether
/// it is quantized from the names of its tensors.
pub(super) const OF_AUTO_ROUND: [&str; 41] = [
    "act_bits",
    "act_data_type",
    "act_dynamic",
    "act_group_size",
    "act_sym",
    "amp",
    "autoround_version",
    "batch_size",
    "block_name_to_quantize",
    "dynamic_max_gap",
    "enable_alg_ext",
    "enable_minmax_tuning",
    "enable_norm_bias_tuning",
    "enable_quanted_input",
    "enable_torch_compile",
    "gradient_accumulate_steps",
    "iters",
    "low_cpu_mem_usage",
    "low_gpu_mem_usage",
    "lr",
    "lr_scheduler",
    "minmax_lr",
    "momentum",
    "nblocks",
    "not_use_best_mse",
    "nsamples",
    "provider",
    "quant_block_list",
    "quant_nontext_module",
    "sampler",
    "scale_dtype",
    "seed",
    "seqlen",
    "static_attention_dtype",
    "static_kv_dtype",
    "sym",
    "to_quant_block_names",
    "truncation",
    "use_quant_input",
    "static_attention_granularity",
    "static_kv_granularity",
];

/// Fields about the making of a checkpoint, and about the machines it was meant for.
const OF_MAKING: [&str; 20] = [
    "act_group_aware",
    "cache_block_outputs",
    "damp_auto_increment",
    "exllama_version",
    "lm_head",
    "max_input_length",
    "model_file_base_name",
    "model_name_or_path",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "mse",
    "pack_dtype",
    "pad_token_id",
    "parallel_packing",
    "static_groups",
    "true_sequential",
    "uri",
    "use_cuda_fp16",
    "use_exllama",
    "disable_exllama",
];

/// Ignores the fields of AWQ and GPTQ, and those that AutoRound adds to both.
pub(super) fn pass_over(fields: &mut Fields<'_>) -> Result<(), SchemeError> {
    fields.pass_over(&OF_MAKING);
    fields.pass_over(&OF_AUTO_ROUND);
    fields.only("data_type", &["int".into()])
}
