"""Checkpoints of NVIDIA's ModelOpt, and what its own tensor classes make of them."""

import comparison
import modelopt.torch.quantization as modelopt
import pytest
import tiny
import torch
from comparison import EXACT, INT8
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP8QTensor, NVFP4QTensor

NVFP4_GROUP = 16


def quantize(source, folder, config):
    model = modelopt.quantize(
        tiny.load(source), getattr(modelopt, config), lambda model: [model(ids[None]) for ids in tiny.sentences()]
    )
    export_hf_checkpoint(model, export_dir=folder)


def dequantized(folder):
    """The weights in float64, by ModelOpt's classes. Of the experts in one tensor it stores the transposed matrices."""
    stored = comparison.tensors(folder)
    weights = {}
    for name, codes in stored.items():
        is_stack = codes.ndim == 3
        scale_name = f"{name}_weight_scale" if is_stack else f"{name}_scale"
        if name.endswith(("_scale", "_scale_2")):
            continue
        if scale_name not in stored:
            weights[name] = codes
            continue
        scale, second = stored[scale_name], stored.get(f"{scale_name}_2")
        if is_stack:
            codes = codes.transpose(-1, -2).contiguous()
            scale = scale.transpose(-1, -2).contiguous() if scale.ndim == 3 else scale
        weights[name] = of_one(codes, scale, second)
        if is_stack:
            weights[name] = weights[name].transpose(-1, -2)
    return weights


def of_one(codes, scale, second):
    if second is not None:
        shape = (*codes.shape[:-1], codes.shape[-1] * 2)
        blocks = {"block_sizes": {-1: NVFP4_GROUP}}
        return NVFP4QTensor(shape, torch.float32, codes).dequantize(
            torch.float32, scale=scale, double_scale=second, **blocks
        )
    if scale.dtype == torch.uint8:
        return MXFP8QTensor(codes.shape, torch.float32, codes).dequantize(torch.float32, scale=scale)
    if scale.ndim == 4:
        scale = scale[:, 0, :, 0]
    blocks = [size // n for size, n in zip(codes.shape, scale.shape)] if scale.ndim == 2 else None
    options = {"block_sizes": dict(enumerate(blocks))} if blocks else {}
    if scale.ndim == 1 and scale.numel() > 1:
        scale = scale[:, None]
    return FP8QTensor(codes.shape, torch.float32, codes).dequantize(torch.float32, scale=scale, **options)


CASES = {
    "fp8": ("llama", "FP8_DEFAULT_CFG"),
    "fp8-channel": ("qwen3", "FP8_PER_CHANNEL_PER_TOKEN_CFG"),
    "fp8-blocks": ("llama", "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG"),
    "nvfp4": ("qwen3", "NVFP4_DEFAULT_CFG"),
    "w4a16-nvfp4": ("llama", "W4A16_NVFP4_CFG"),
    "mxfp8": ("qwen3", "MXFP8_DEFAULT_CFG"),
    "experts-fp8": ("qwen3-moe", "FP8_DEFAULT_CFG"),
    "experts-nvfp4": ("qwen3-moe", "NVFP4_DEFAULT_CFG"),
    "stack-fp8": ("llama4", "FP8_DEFAULT_CFG"),
    "stack-nvfp4": ("llama4", "NVFP4_DEFAULT_CFG"),
    "stack-of-biases-nvfp4": ("gpt-oss", "NVFP4_DEFAULT_CFG"),
}


@pytest.mark.parametrize("name", CASES)
def test_modelopt(start, base, tmp_path, name):
    model, config = CASES[name]
    folder = tmp_path / f"modelopt-{name}"
    quantize(base(model), folder, config)
    weights = dequantized(folder)
    for tensor, original in comparison.tensors(base(model)).items():
        # The layout is read as it was meant: what is left is the error of rounding to the format.
        off = (weights[tensor].double() - original.double()).norm()
        assert off <= 0.2 * original.double().norm(), f"{tensor}: {off}"
    bound = INT8 if "NVFP4" in config else EXACT
    comparison.check(start, folder, comparison.float64(folder, weights, tmp_path), tmp_path, bound)
