"""FP8 as transformers writes and reads it."""

import comparison
import pytest
import tiny
import torch
from comparison import EXACT
from transformers import AutoModelForCausalLM, FineGrainedFP8Config
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer


@pytest.fixture()
def quantize(monkeypatch):
    """Quantizes with transformers, which would refuse to do so without a GPU, though it computes on the CPU."""

    def quantized(source, folder, **options):
        with monkeypatch.context() as patch:
            patch.setattr(FineGrainedFP8HfQuantizer, "validate_environment", lambda *_, **__: None)
            model = tiny.load(source, quantization_config=FineGrainedFP8Config(**options), device_map="cpu")
            model.save_pretrained(folder)

    return quantized


def dequantized(folder, **options):
    """The model that transformers makes of the folder, in float32: a product of E4M3 and its factor is rounded once."""
    of_floats = FineGrainedFP8Config(dequantize=True, **options)
    model, report = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        quantization_config=of_floats,
        experts_implementation="eager",
        output_loading_info=True,
    )
    assert not any(report.values()), report
    return model.double()


CASES = {
    "blocks": ("qwen3", {}),
    "blocks-of-powers": ("qwen3", {"scale_fmt": "ue8m0"}),
    "blocks-64": ("llama", {"weight_block_size": (64, 64)}),
    "tensor": ("llama", {"weight_block_size": None}),
    "tensor-static": ("qwen3", {"weight_block_size": None, "activation_scheme": "static"}),
    "experts": ("qwen3-moe", {}),
}


@pytest.mark.parametrize("name", CASES)
def test_fp8(start, base, quantize, tmp_path, name):
    model, options = CASES[name]
    folder = tmp_path / f"fp8-{name}"
    quantize(base(model), folder, **options)
    comparison.check(start, folder, dequantized(folder, **options), tmp_path, EXACT)
