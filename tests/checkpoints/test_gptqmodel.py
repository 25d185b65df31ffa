"""GPTQ as GPTQModel writes it, and as its own layers dequantize it, in processes of their own."""

import os

# Its pools of threads do not fit together on a machine with two cores, unless told to.
os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")

import comparison
import pytest
import tiny
import torch
from comparison import EXACT, INT8
from safetensors.torch import load_file, save_file


def quantize(source, folder, **options):
    from gptqmodel import GPTQModel, QuantizeConfig

    rows = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in tiny.sentences(length=128)]
    model = GPTQModel.load(str(source), QuantizeConfig(**options, device="cpu"))
    model.quantize(rows, batch_size=1)
    model.save(str(folder))


def dequantize(folder, file):
    """Writes the weights that GPTQModel's layers make of the folder, in float32: a product of a small integer and a factor in F16 is one
    there."""
    from gptqmodel import BACKEND, GPTQModel

    loaded = GPTQModel.load(str(folder), backend=BACKEND.TORCH, device="cpu").model
    stored = comparison.tensors(folder)
    weights = {name: tensor for name, tensor in stored.items() if name.endswith(".weight")}
    for name, layer in loaded.named_modules():
        if hasattr(layer, "qweight"):
            # They were rounded to the type that the layer computes in.
            layer.scales = stored[f"{name}.scales"].float()
            weights[f"{name}.weight"] = layer.dequantize_weight().T
    save_file({name: weight.contiguous() for name, weight in weights.items()}, file)


def gptq(**options):
    return {"bits": 4, "group_size": 128, "desc_act": False, "sym": True, **options}


DYNAMIC = {"+:.*layers\\.1\\..*down_proj": {"bits": 8, "group_size": 64}, "-:.*o_proj": {}}
CASES = {
    "gptq": ("qwen3", gptq(), INT8),
    "gptq-asym": ("qwen3", gptq(sym=False, group_size=64), INT8),
    "gptq-act-order": ("qwen3", gptq(desc_act=True, act_group_aware=False), EXACT),
    "gptq-act-order-asym": ("qwen3", gptq(desc_act=True, act_group_aware=False, sym=False), EXACT),
    "gptq-v2": ("qwen3", gptq(format="gptq_v2", sym=False), INT8),
    "gptq-2": ("qwen3", gptq(bits=2, group_size=32), INT8),
    "gptq-3": ("qwen3", gptq(bits=3, sym=False), INT8),
    "gptq-8": ("qwen3", gptq(bits=8, group_size=-1, act_group_aware=False), INT8),
    "gptq-dynamic": ("qwen3", gptq(dynamic=DYNAMIC), INT8),
    "gptq-experts": ("qwen3-moe", gptq(sym=False), INT8),
}


@pytest.mark.parametrize("name", CASES)
def test_gptqmodel(start, base, tmp_path, name):
    model, options, bound = CASES[name]
    folder = tmp_path / f"gptqmodel-{name}"
    comparison.in_own_process(quantize, base(model), folder, **options)
    comparison.in_own_process(dequantize, folder, tmp_path / "weights.safetensors")
    model = comparison.float64(folder, load_file(tmp_path / "weights.safetensors"), tmp_path)
    comparison.check(start, folder, model, tmp_path, bound)
