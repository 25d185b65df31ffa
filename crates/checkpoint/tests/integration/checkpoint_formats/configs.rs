//! Which configurations are read, and what is said of the others.

use super::*;
use throng_checkpoint::quantized::Layout;

/// What is said of a configuration.
fn refused(config: Value) -> String {
    let config = json!({ "quantization_config": config });
    Scheme::of_config(config.as_object().unwrap()).unwrap_err().to_string()
}

#[test]
fn a_field_that_is_not_known_is_refused_by_name() {
    let awq = json!({"quant_method": "awq", "bits": 4, "group_size": 128, "rotation": "hadamard"});
    assert_eq!(refused(awq), "rotation = \"hadamard\" of AWQ");
    let fast = json!({"quant_method": "awq", "version": "gemv_fast"});
    assert_eq!(refused(fast), "version = \"gemv_fast\" of AWQ");
    let two = json!({"quant_method": "awq", "version": "gemm", "checkpoint_format": "gemv"});
    assert_eq!(refused(two), "checkpoint_format = \"gemv\" of AWQ");
    assert_eq!(refused(json!({"quant_method": "gptq", "bits": 5})), "bits = 5 of GPTQ");
    for format in ["marlin", "gptq_p"] {
        let config = json!({"quant_method": "gptq", "bits": 4, "format": format});
        assert_eq!(refused(config), format!("format = \"{format}\" of GPTQ"));
    }
    for bits in ["load_in_4bit", "load_in_8bit"] {
        let config = json!({"quant_method": "bitsandbytes", bits: true, "bnb_4bit_quant_type": "nf4"});
        assert_eq!(refused(config), "bitsandbytes");
    }
    assert_eq!(refused(json!({"load_in_4bit": false, "load_in_8bit": true})), "bitsandbytes");
    assert_eq!(refused(json!({"quant_method": "hqq"})), "HQQ");
    let sparse = json!({"num_bits": 4, "group_size": 128, "strategy": "group", "symmetric": true, "rank": 3});
    assert_eq!(refused(weights_config("pack-quantized", &sparse)), "rank = 3 of compressed-tensors weights");
    let fp8 = json!({"quant_method": "fp8", "fmt": "e5m2"});
    assert_eq!(refused(fp8), "fmt = \"e5m2\" of FP8");
}

#[test]
fn what_compressed_tensors_cannot_mean_is_refused_by_field() {
    let of = |format: &str, weights: Value| refused(weights_config(format, &weights));
    let weights =
        |strategy: &str| json!({"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": true});
    assert_eq!(of("marlin-24", weights("channel")), "format = marlin-24 of compressed-tensors");
    let kind = "compressed-tensors weights";
    assert_eq!(of("float-quantized", weights("token")), format!("strategy = \"token\" of {kind}"));
    assert_eq!(of("pack-quantized", weights("channel")), format!("type = \"float\" of {kind}"));
    assert_eq!(of("float-quantized", weights("block")), format!("block_structure = null of {kind}"));
    let mut odd = weights("block");
    odd["block_structure"] = json!([128, 128, 1]);
    assert_eq!(of("float-quantized", odd), format!("block_structure = [128,128,1] of {kind}"));
    let wide = json!({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 64});
    assert_eq!(of("mxfp4-pack-quantized", wide), format!("group_size = 64 of {kind}"));
    let shifted = json!({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": false});
    assert_eq!(of("float-quantized", shifted), format!("symmetric = false of {kind}"));
    let ten = json!({"num_bits": 10, "type": "int", "strategy": "channel"});
    assert_eq!(of("int-quantized", ten), format!("num_bits = 10 of {kind}"));
    for (field, value) in [
        ("sparsity_config", json!({"format": "sparse-24-bitmask", "global_sparsity": 0.5})),
        ("transform_config", json!({"config_groups": {"R1": {"type": "hadamard"}}})),
    ] {
        let mut config = weights_config("float-quantized", &weights("channel"));
        config[field] = value.clone();
        assert_eq!(refused(config), format!("{field} = {value} of compressed-tensors"));
    }
}

/// Two groups with layouts of their own, as llm-compressor writes them.
fn mixture(targets: [Value; 2]) -> Value {
    let [first, second] = targets;
    let fp8 =
        json!({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true, "dynamic": false});
    let fp4 = json!({
        "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": true, "dynamic": false,
    });
    let scheme =
        json!({"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false, "symmetric": true});
    json!({
        "quant_method": "compressed-tensors", "format": "mixed-precision", "kv_cache_scheme": scheme,
        "ignore": ["lm_head", "re:.*router$"], "quantization_status": "compressed", "sparsity_config": {"format": "dense"},
        "config_groups": {
            "group_0": {"targets": first, "weights": fp8, "format": "float-quantized", "output_activations": null},
            "group_1": {"targets": second, "weights": fp4, "format": "nvfp4-pack-quantized"},
            "group_2": {"targets": ["LlamaAttention"], "weights": null, "input_activations": scheme},
        },
    })
}

#[test]
fn groups_of_layers_have_layouts_of_their_own() {
    let scheme =
        scheme(&mixture([json!(["re:.*self_attn.*", "model.layers.3.mlp.down_proj"]), json!(["Linear"])]));
    let (fp8, fp4) = (Some(Layout::FP8_ROWS), Some(Layout::NVFP4));
    assert_eq!(scheme.of_layer("model.layers.0.self_attn.q_proj"), fp8);
    assert_eq!(scheme.of_layer("model.layers.3.mlp.down_proj"), fp8);
    assert_eq!(scheme.of_layer("model.layers.13.mlp.down_proj"), fp4);
    assert_eq!(scheme.of_layer("model.layers.0.mlp.experts.5.down_proj"), fp4);

    let rng = &mut Rng::with_seed(73);
    let (rows, fp4) = (fp8_rows(rng, 40), nvfp4(rng, false, 64));
    let named = |layer: &str, case: &Case| -> Vec<_> {
        let of_layer = |(name, (dtype, shape, data)): (&&str, &(Dtype, Vec<usize>, Vec<u8>))| {
            (format!("{layer}.{name}"), *dtype, shape.clone(), data.clone())
        };
        case.tensors.iter().map(of_layer).collect()
    };
    let tensors: Vec<_> = [named("a.self_attn.q_proj", &rows), named("a.mlp.up_proj", &fp4)].concat();
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, data)| (name.clone(), Stored::new(*dtype, shape.clone(), data).unwrap()));
    let file = serialize(views, None).unwrap();
    let folder = QuantizedFolder::new(SafetensorsFolder::parse_any(&file).unwrap(), scheme);
    let decoded =
        |name: &str, case: &Case| folder.decode(name, case.shape).unwrap().unwrap().format == case.format;
    assert!(decoded("a.self_attn.q_proj.weight", &rows) && decoded("a.mlp.up_proj.weight", &fp4));
    let n_bytes = |case: &Case| case.tensors.values().map(|(_, _, data)| data.len() as u64).sum::<u64>();
    let mut sizes: Vec<u64> = folder.encodings().iter().map(|encoding| encoding.n_stored_bytes).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [n_bytes(&fp4), n_bytes(&rows)]);
}

/// A target that cannot be understood is refused, and so is a layer that no target is about.
#[test]
fn targets_of_a_mixture_have_to_be_understood() {
    for target in ["re:(?!.*gate).*", "re:(", "Embedding"] {
        let config = mixture([json!([target]), json!(["Linear"])]);
        assert_eq!(refused(config), format!("targets = \"{target}\" of compressed-tensors"));
    }
    let rng = &mut Rng::with_seed(74);
    let mut case = fp8_rows(rng, 40);
    case.config = mixture([json!(["re:.*self_attn.*"]), json!(["re:.*mlp.*"])]);
    let error = open(&case).decode("l.weight", case.shape).unwrap().unwrap_err().to_string();
    assert_eq!(error, "the quantization_config does not say how l is stored");
}

#[test]
fn layers_of_gptq_may_have_bits_and_groups_of_their_own() {
    let gptq = |bits: usize, group: Option<usize>| Layout::gptq(bits, group);
    let config =
        |dynamic: Value| json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": dynamic});
    let scheme = scheme(&config(json!({
        "-:.*shared_expert.*": {},
        "+:.*\\.18\\..*gate.*": {"bits": 8, "group_size": 32},
        ".*\\.19\\..*gate.*": {"group_size": -1, "sym": false},
    })));
    assert_eq!(scheme.of_layer("model.layers.1.mlp.gate_proj"), Some(gptq(4, Some(128))));
    assert_eq!(scheme.of_layer("model.layers.18.mlp.gate_proj"), Some(gptq(8, Some(32))));
    assert_eq!(scheme.of_layer("model.layers.19.mlp.gate_proj"), Some(gptq(4, None)));
    assert_eq!(scheme.of_layer("model.layers.18.mlp.shared_expert.gate_proj"), None);
    let refused = |dynamic: Value| refused(config(dynamic));
    assert_eq!(refused(json!({"x": {"bits": 5}})), "bits = 5 of GPTQ dynamic");
    assert_eq!(refused(json!({"x": {"rank": 5}})), "rank = 5 of GPTQ dynamic");
    assert_eq!(refused(json!({"+:(?!x).*": {"bits": 8}})), "dynamic = (?!x).* of GPTQ");
}

#[test]
fn layers_of_modelopt_may_have_algorithms_of_their_own() {
    // Shortened from a published `hf_quant_config.json`.
    let scheme = scheme(&json!({
        "producer": {"name": "modelopt", "version": "0.44.0"},
        "quantization": {
            "quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8", "exclude_modules": ["mtp*"],
            "quantized_layers": {
                "model.language_model.layers.0.mlp.experts": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
                "model.language_model.layers.3.self_attn.q_proj": {"quant_algo": "FP8"},
                "model.language_model.layers.3.self_attn.k_proj": {"quant_algo": "UNQUANTIZED"},
            },
        },
    }));
    let nvfp4 = Some(Layout::NVFP4_MODELOPT);
    assert_eq!(scheme.of_layer("model.language_model.layers.0.mlp.experts.7.up_proj"), nvfp4);
    assert_eq!(scheme.of_layer("model.language_model.layers.3.self_attn.q_proj"), Some(Layout::FP8_ROWS));
    assert_eq!(scheme.of_layer("model.language_model.layers.3.self_attn.k_proj"), None);
    assert_eq!(scheme.of_layer("model.language_model.layers.30.self_attn.q_proj"), None);
    let of = |algorithm: &str| json!({"quant_method": "modelopt", "quant_algo": algorithm});
    for algorithm in ["W4A16_AWQ", "NVFP4_AWQ", "MIXED_PRECISION"] {
        assert_eq!(refused(of(algorithm)), format!("quant_algo = \"{algorithm}\" of ModelOpt"));
    }
    // Only keys and values are quantized.
    let kv = json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": null, "kv_cache_quant_algo": "FP8"}});
    assert!(Scheme::of_config(kv.as_object().unwrap()).unwrap().is_none());
}

/// GPTQModel writes its own name as the method, whatever the layout.
#[test]
fn awq_of_gptqmodel_is_known_by_its_format() {
    let config = json!({
        "quant_method": "gptq", "method": "awq", "format": "gemm", "checkpoint_format": "gemm", "bits": 4, "group_size": 64,
        "sym": false, "desc_act": false, "lm_head": false, "meta": {"quantizer": ["gptqmodel:7.5.0"]}, "pack_dtype": "int32",
    });
    assert_eq!(scheme(&config).of_layer("x"), Some(Layout::awq(Some(64))));
}

/// AutoRound writes the layouts of AutoAWQ and AutoGPTQ too, with fields of its own.
#[test]
fn awq_and_gptq_of_auto_round_are_read() {
    let config = |method: &str, more: Value| {
        let mut config = json!({
            "quant_method": method, "autoround_version": "0.15.1", "bits": 4, "data_type": "int", "enable_quanted_input": false,
            "group_size": 128, "provider": "auto-round", "static_attention_granularity": "tensor",
            "static_kv_granularity": "tensor", "to_quant_block_names": "model.layers", "sym": false,
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    let awq =
        config("awq", json!({"modules_to_not_convert": ["lm_head"], "version": "gemm", "zero_point": true}));
    assert_eq!(scheme(&awq).of_layer("x"), Some(Layout::awq(Some(128))));
    let gptq = config(
        "gptq",
        json!({"damp_percent": 0.01, "desc_act": false, "lm_head": false, "true_sequential": false}),
    );
    let by = Layout::gptq(4, Some(128));
    assert_eq!(scheme(&gptq).of_layer("x"), Some(by));
    assert_eq!(refused(config("gptq", json!({"data_type": "fp"}))), "data_type = \"fp\" of GPTQ");
}

#[test]
fn layers_of_auto_round_are_those_of_gptq_or_awq() {
    let config = |packing: &str, extra: Value| {
        json!({
            "quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": true, "data_type": "int", "iters": 200,
            "packing_format": packing, "autoround_version": "0.15.1", "block_name_to_quantize": "model.layers", "extra_config": extra,
            "enable_quanted_input": false, "static_attention_granularity": "tensor", "static_kv_granularity": "tensor",
        })
    };
    let gptq = |bits: usize, group: usize| Some(Layout::gptq(bits, Some(group)));
    let layers = json!({
        "lm_head": {"bits": 16, "data_type": "float"},
        "model.layers.0.mlp.down_proj": {"bits": 8},
        ".*self_attn.[kv]_proj": {"bits": 8, "group_size": 32, "sym": false},
    });
    let by_gptq = scheme(&config("auto_round:auto_gptq", layers));
    assert_eq!(by_gptq.of_layer("model.layers.1.mlp.down_proj"), gptq(4, 128));
    assert_eq!(by_gptq.of_layer("model.layers.0.mlp.down_proj"), gptq(8, 128));
    assert_eq!(by_gptq.of_layer("model.layers.0.self_attn.k_proj"), gptq(8, 32));
    assert_eq!(by_gptq.of_layer("lm_head"), None);
    let by_awq = scheme(&config("auto_round:auto_awq", json!({"lm_head": {"bits": 16}})));
    assert_eq!(by_awq.of_layer("model.layers.1.mlp.down_proj"), Some(Layout::awq(Some(128))));
    let other = "auto_round:llm_compressor";
    assert_eq!(refused(config(other, json!({}))), format!("packing_format = \"{other}\" of AutoRound"));
    let short = |data_type: &str, bits: usize, group: usize, extra: Value| {
        let mut config = config("auto_round:llm_compressor", extra);
        (config["data_type"], config["bits"], config["group_size"]) =
            (data_type.into(), bits.into(), group.into());
        config
    };
    let mx = scheme(&short("mx_fp", 4, 32, json!({"a": {"bits": 8}, "lm_head": {"bits": 16}})));
    let found = ["a", "b", "lm_head"].map(|name| mx.of_layer(name));
    assert_eq!(found, [Some(Layout::MXFP8), Some(Layout::MXFP4), None]);
    let nv = scheme(&short("nv_fp", 4, 16, json!({})));
    assert_eq!(nv.of_layer("a"), Some(Layout::NVFP4));
    assert_eq!(refused(short("nv_fp", 4, 32, json!({}))), "group_size = 32 of AutoRound");
    assert_eq!(refused(short("mx_int", 4, 32, json!({}))), "data_type = \"mx_int\" of AutoRound");
    let five = config("auto_round:auto_gptq", json!({"a": {"bits": 5}}));
    assert_eq!(refused(five), "bits = 5 of AutoRound extra_config");
}
