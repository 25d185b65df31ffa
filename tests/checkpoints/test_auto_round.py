"""Checkpoints of AutoRound in its layouts, and what its own layers make of them. AutoRound runs in processes of its own."""

import comparison
import pytest
import tiny
import torch
from comparison import EXACT, INT8, TWO_TERMS
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM


def quantize(source, folder, layout, **options):
    """Rounds to the nearest: what is looked for is the layout, not the best numbers. Returns the folder below, which AutoRound names."""
    import auto_round

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


def dequantize(folder, file):
    """Writes the weights of the layers that AutoRound makes of the folder: their products with a matrix that has ones on its
    diagonal, rounded to 16 bits as these layers do."""
    model = AutoModelForCausalLM.from_pretrained(folder, device_map="cpu")
    weights = {name: tensor for name, tensor in comparison.tensors(folder).items() if name.endswith(".weight")}
    with torch.no_grad():
        for name, layer in model.named_modules():
            if hasattr(layer, "qweight"):
                one = torch.eye(layer.in_features if hasattr(layer, "in_features") else layer.infeatures)
                weights[f"{name}.weight"] = layer(one.to(model.dtype)).T
    save_file({name: weight.contiguous() for name, weight in weights.items()}, file)


W4 = {"scheme": "W4A16"}
CASES = {
    "auto-round": ("qwen3", "auto_round", W4),
    "auto-round-asym": ("llama", "auto_round", {**W4, "sym": False}),
    "auto-round-2": ("llama", "auto_round", {"scheme": "W2A16", "group_size": 64}),
    "auto-round-awq": ("qwen3", "auto_round:auto_awq", W4),
    "awq": ("llama", "auto_awq", {**W4, "sym": False}),
    "experts": ("qwen3-moe", "auto_round", W4),
}
#: The sizes of E2M1, in the order of their codes.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E8M0_BIAS = 127
SHORT_FLOATS = {
    "mxfp4": ("qwen3", "MXFP4", TWO_TERMS),
    "mxfp8": ("llama", "MXFP8", EXACT),
    "nvfp4": ("llama", "NVFP4", INT8),
    "experts-nvfp4": ("qwen3-moe", "NVFP4", INT8),
}


@pytest.mark.parametrize("name", CASES)
def test_auto_round(start, base, tmp_path, name):
    model, layout, options = CASES[name]
    folder = comparison.in_own_process(quantize, base(model), tmp_path / name, layout, **options)
    comparison.in_own_process(dequantize, folder, tmp_path / "weights.safetensors")
    model = comparison.float64(folder, load_file(tmp_path / "weights.safetensors"), tmp_path)
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
            numbers = torch.tensor([*E2M1, *(-x for x in E2M1)], dtype=torch.float64)[codes]
        else:
            numbers = codes.double()
        if scale.dtype == torch.uint8:
            scale = 2.0 ** (scale.double() - E8M0_BIAS)
        else:
            scale = scale.double() / stored[f"{layer}.weight_global_scale"].double()
        weights[f"{layer}.weight"] = numbers * scale.repeat_interleave(numbers.shape[1] // scale.shape[1], 1)
    return weights


@pytest.mark.parametrize("name", SHORT_FLOATS)
def test_short_floats(start, base, tmp_path, name):
    model, scheme, bound = SHORT_FLOATS[name]
    folder = comparison.in_own_process(quantize, base(model), tmp_path / name, "auto_round", scheme=scheme)
    weights = of_short_floats(folder)
    for tensor, original in comparison.tensors(base(model)).items():
        off = (weights[tensor].double() - original.double()).norm()
        assert off <= 0.2 * original.double().norm(), f"{tensor}: {off}"
    comparison.check(start, folder, comparison.float64(folder, weights, tmp_path), tmp_path, bound)
