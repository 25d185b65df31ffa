"""Checkpoints of AutoRound in its layouts, and what its own layers make of them."""

import auto_round
import comparison
import pytest
import tiny
import torch
from comparison import INT8
from transformers import AutoModelForCausalLM


def quantize(source, folder, layout, **options):
    """Rounds to the nearest: what is looked for is the layout, not the best numbers. Returns the folder below, which AutoRound names."""
    rounding = auto_round.AutoRound(
        tiny.load(source), tiny.tokenizer(), iters=0, disable_opt_rtn=True, device_map="cpu", **options
    )
    rounding.quantize_and_save(str(folder), format=layout)
    return next(folder.rglob("config.json")).parent


def dequantized(folder):
    """The weights of the layers that AutoRound makes of the folder: their products with a matrix that has ones on its diagonal,
    rounded to 16 bits as these layers do."""
    model = AutoModelForCausalLM.from_pretrained(folder, device_map="cpu")
    weights = {name: tensor for name, tensor in comparison.tensors(folder).items() if name.endswith(".weight")}
    with torch.no_grad():
        for name, layer in model.named_modules():
            if hasattr(layer, "qweight"):
                one = torch.eye(layer.in_features if hasattr(layer, "in_features") else layer.infeatures)
                weights[f"{name}.weight"] = layer(one.to(model.dtype)).T
    return weights


W4 = {"scheme": "W4A16"}
CASES = {
    "auto-round": ("qwen3", "auto_round", W4),
    "auto-round-asym": ("llama", "auto_round", {**W4, "sym": False}),
    "auto-round-2": ("llama", "auto_round", {"scheme": "W2A16", "group_size": 64}),
    "auto-round-awq": ("qwen3", "auto_round:auto_awq", W4),
    "awq": ("llama", "auto_awq", {**W4, "sym": False}),
    "experts": ("qwen3-moe", "auto_round", W4),
}


@pytest.mark.parametrize("name", CASES)
def test_auto_round(start, base, tmp_path, name):
    model, layout, options = CASES[name]
    folder = quantize(base(model), tmp_path / name, layout, **options)
    model = comparison.float64(folder, dequantized(folder), tmp_path)
    comparison.check(start, folder, model, tmp_path, INT8)
