"""Checkpoints of AutoRound in its layouts, and what its own layers make of them."""

import auto_round
import comparison
import pytest
import tiny
import torch
from auto_round.export.export_to_autoround.qlinear_fp import E8M0_EXPONENT_BIAS, FLOAT_TO_E2M1
from comparison import EXACT, INT8, TWO_TERMS
from transformers import AutoModelForCausalLM


def quantize(source, folder, layout, **options):
    """Rounds to the nearest: what is looked for is the layout, not the best numbers. Returns the folder below, which AutoRound names."""
    rounding = auto_round.AutoRound(
        tiny.load(source),
        tiny.tokenizer(),
        iters=0,
        disable_opt_rtn=True,
        device_map="cpu",
        dataset=list(tiny.sentences()[:, None]),
        seqlen=tiny.sentences().shape[1],
        **options,
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
SHORT_FLOATS = {
    "mxfp4": ("qwen3", "MXFP4", TWO_TERMS),
    "mxfp8": ("llama", "MXFP8", EXACT),
    "nvfp4": ("llama", "NVFP4", INT8),
    "experts-nvfp4": ("qwen3-moe", "NVFP4", INT8),
}


@pytest.mark.parametrize("name", CASES)
def test_auto_round(start, base, tmp_path, name):
    model, layout, options = CASES[name]
    folder = quantize(base(model), tmp_path / name, layout, **options)
    model = comparison.float64(folder, dequantized(folder), tmp_path)
    comparison.check(start, folder, model, tmp_path, INT8)


def of_short_floats(folder):
    """The weights in float64 of codes and scales, which AutoRound packs so that they divide the numbers that it rounded
    (`export_to_autoround/qlinear_fp.py`)."""
    stored = comparison.tensors(folder)
    weights = {}
    for name, codes in stored.items():
        layer, _, end = name.rpartition(".")
        scale = stored.get(f"{layer}.weight_scale")
        if end not in ("weight", "weight_packed") or scale is None:
            weights |= {} if "scale" in end else {name: codes}
            continue
        if end == "weight_packed":
            codes = torch.stack((codes & 15, codes >> 4), -1).flatten(-2).long()
            numbers = torch.tensor([*FLOAT_TO_E2M1, *(-x for x in FLOAT_TO_E2M1)], dtype=torch.float64)[codes]
        else:
            numbers = codes.double()
        if scale.dtype == torch.uint8:
            scale = 2.0 ** (scale.double() - E8M0_EXPONENT_BIAS)
        else:
            scale = scale.double() / stored[f"{layer}.weight_global_scale"].double()
        weights[f"{layer}.weight"] = numbers * scale.repeat_interleave(numbers.shape[1] // scale.shape[1], 1)
    return weights


@pytest.mark.parametrize("name", SHORT_FLOATS)
def test_short_floats(start, base, tmp_path, name):
    model, scheme, bound = SHORT_FLOATS[name]
    folder = quantize(base(model), tmp_path / name, "auto_round", scheme=scheme)
    weights = of_short_floats(folder)
    for tensor, original in comparison.tensors(base(model)).items():
        off = (weights[tensor].double() - original.double()).norm()
        assert off <= 0.2 * original.double().norm(), f"{tensor}: {off}"
    comparison.check(start, folder, comparison.float64(folder, weights, tmp_path), tmp_path, bound)
