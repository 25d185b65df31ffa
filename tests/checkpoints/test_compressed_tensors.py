"""Every layout of compressed-tensors as llm-compressor writes it, and as compressed-tensors dequantizes it."""

import comparison
import compressed_tensors.compressors.nvfp4.base as nvfp4
import pytest
import tiny
import torch
from comparison import EXACT, INT8, TWO_TERMS
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.utils.match import match_name
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier

IGNORED = ["lm_head", "re:.*mlp.gate$"]


def quantize(source, folder, *, modifier=QuantizationModifier, calibrate=False, **recipe):
    """What llm-compressor makes of a model."""
    model = tiny.load(source)
    options = {}
    if calibrate:
        ids = tiny.sentences().tolist()
        rows = Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]})
        options = {
            "dataset": rows,
            "num_calibration_samples": len(ids),
            "max_seq_length": len(ids[0]),
            "tokenizer": tiny.tokenizer(),
        }
    oneshot(model=model, recipe=modifier(**{"ignore": IGNORED, **recipe}), **options)
    model.save_pretrained(folder, save_compressed=True)


@pytest.fixture()
def dequantize(monkeypatch):
    """Dequantizes a folder with compressed-tensors, whose results have the type of the scales and are rounded to it: float64 here."""
    unpack = nvfp4.unpack_fp4_from_uint8

    def in_float64(codes, rows, columns, dtype=torch.float64):
        return unpack(codes, rows, columns, dtype=dtype)

    monkeypatch.setattr(nvfp4, "unpack_fp4_from_uint8", in_float64)

    def dequantized(folder):
        stored = comparison.tensors(folder)
        config = QuantizationConfig.model_validate(comparison.config(folder)["quantization_config"])
        weights = {}
        for layer, parts in by_layer(stored).items():
            scheme = scheme_of(config, layer)
            if scheme is None or "weight_scale" not in parts:
                weights |= {f"{layer}.{end}": tensor for end, tensor in parts.items()}
                continue
            if parts["weight_scale"].dtype in (torch.bfloat16, torch.float16, torch.float32):
                parts["weight_scale"] = parts["weight_scale"].double()
            name = scheme.format or infer_module_format(torch.nn.Linear, scheme)
            layout = BaseCompressor.get_value_from_registry(name)
            weights[f"{layer}.weight"] = layout.decompress(parts, scheme)["weight"]
        return weights

    return dequantized


def by_layer(stored):
    layers = {}
    for name, tensor in stored.items():
        layer, end = name.rsplit(".", 1)
        layers.setdefault(layer, {})[end] = tensor
    return layers


def scheme_of(config, layer):
    if any(match_name(layer, ignored) for ignored in config.ignore):
        return None
    groups = config.config_groups.values()
    named = [group for group in groups if any(match_name(layer, target) for target in group.targets)]
    is_linear = layer.endswith("_proj")
    return next(iter([*named, *(group for group in groups if "Linear" in group.targets and is_linear)]), None)


def weights_only(**arguments):
    weights = QuantizationArgs(dynamic=False, **arguments)
    return {"config_groups": {"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}}


MIXED = {
    "config_groups": {
        "attention": QuantizationScheme(
            targets=["re:.*self_attn.*"],
            weights=QuantizationArgs(num_bits=8, type="float", strategy="channel", dynamic=False),
        ),
        "feed_forward": QuantizationScheme(
            targets=["re:.*mlp.*"],
            weights=QuantizationArgs(num_bits=4, group_size=64, strategy="group", dynamic=False),
        ),
    }
}
INT8_TENSOR = {
    "config_groups": {
        "group_0": QuantizationScheme(
            targets=["Linear"],
            weights=QuantizationArgs(num_bits=8, strategy="tensor", dynamic=False),
            input_activations=QuantizationArgs(num_bits=8, strategy="token", dynamic=True),
        )
    }
}
ACT_ORDER = {"modifier": GPTQModifier, "calibrate": True, "targets": "Linear", "scheme": "W4A16"}


def preset(name, **options):
    return {"targets": "Linear", "scheme": name, **options}


CASES = {
    **{f"w{bits}a16": ("llama", preset(f"W{bits}A16"), INT8) for bits in range(2, 9)},
    "w4a16-asym": ("qwen3", preset("W4A16_ASYM"), INT8),
    "w8a16-asym-channel": ("qwen3", weights_only(num_bits=8, symmetric=False, strategy="channel"), EXACT),
    "w3a16-asym": ("llama", weights_only(num_bits=3, symmetric=False, strategy="group", group_size=64), INT8),
    "act-order-static": ("llama", {**ACT_ORDER, "actorder": "static"}, INT8),
    "act-order-of-weights": ("llama", {**ACT_ORDER, "actorder": "weight"}, INT8),
    "w4a8": ("qwen3", preset("W4A8"), INT8),
    "w4afp8": ("qwen3", preset("W4AFP8"), INT8),
    "w8a8": ("llama", preset("W8A8"), INT8),
    "int8": ("qwen3", preset("INT8"), INT8),
    "int8-tensor": ("llama", INT8_TENSOR, INT8),
    "fp8": ("llama", preset("FP8", calibrate=True), EXACT),
    "fp8-dynamic": ("qwen3", preset("FP8_DYNAMIC"), EXACT),
    "fp8-block": ("qwen3", preset("FP8_BLOCK"), EXACT),
    "nvfp4": ("llama", preset("NVFP4", calibrate=True), INT8),
    "nvfp4a16": ("qwen3", preset("NVFP4A16"), INT8),
    "mxfp4": ("llama", preset("MXFP4"), TWO_TERMS),
    "mxfp4a16": ("qwen3", preset("MXFP4A16"), TWO_TERMS),
    "mxfp8": ("llama", preset("MXFP8"), EXACT),
    "mxfp8a16": ("qwen3", preset("MXFP8A16"), EXACT),
    "mixed": ("qwen3", MIXED, INT8),
    "experts-w4a16": ("qwen3-moe", preset("W4A16"), INT8),
    "experts-fp8-block": ("qwen3-moe", preset("FP8_BLOCK"), EXACT),
    "experts-fp8-dynamic": ("qwen3-moe", preset("FP8_DYNAMIC"), EXACT),
    "experts-nvfp4a16": ("qwen3-moe", preset("NVFP4A16"), INT8),
    "experts-mxfp4a16": ("qwen3-moe", preset("MXFP4A16"), TWO_TERMS),
}


@pytest.mark.parametrize("name", CASES)
def test_compressed_tensors(start, base, dequantize, tmp_path, name):
    model, recipe, bound = CASES[name]
    folder = tmp_path / f"ct-{name}"
    quantize(base(model), folder, **recipe)
    model = comparison.float64(folder, dequantize(folder), tmp_path)
    comparison.check(start, folder, model, tmp_path, bound)
