"""Compares what Throng computes from a quantized folder with a float64 forward pass of transformers over the weights that the format's
own library makes of it. Does not know any format.

Where Throng holds a format's numbers as F32 or BF16, activations are not rounded, and log-probabilities differ by no more than those of
other models in floats (`EXACT`). Where it holds them as MXFP4, activations are rounded to two terms of int8, about fifteen bits
(`TWO_TERMS`), without AMX, which is not used then. Where it holds them as integers or NVFP4, activations are rounded to int8: the mean difference may be as large as the one that
comes of rounding activations to int8 with a scale for each 32 of them (`INT8`), which is measured by the same forward pass.
"""

import json
import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM

import tiny

EXACT = 2e-4
TWO_TERMS = 6e-4
INT8 = "int8"


def in_own_process(function, *arguments, **options):
    """Calls a function of a module where that can change nothing here: some libraries replace classes of transformers once they are used."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments, **options).result()


class Int8Activations(TorchFunctionMode):
    """Rounds what is multiplied with one of these matrices to int8, with a scale for each 32 elements."""

    def __init__(self, matrices):
        super().__init__()
        self.storages = {matrix.untyped_storage().data_ptr() for matrix in matrices}

    def __torch_function__(self, function, types, arguments=(), options=None):
        if function is torch.nn.functional.linear:
            x, weight, *rest = arguments
            if weight.untyped_storage().data_ptr() in self.storages:
                arguments = (rounded(x), weight, *rest)
        return function(*arguments, **(options or {}))


def rounded(x):
    blocks = x.unflatten(-1, (-1, 32))
    scale = blocks.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
    return ((blocks / scale).round() * scale).flatten(-2)


def tensors(folder):
    """All tensors of a folder by name, as they are stored."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def config(folder):
    return json.loads((folder / "config.json").read_text())


def float64(folder, weights, scratch):
    """The model of transformers with these weights in float64; none may be missing or left over."""
    of_floats = config(folder)
    of_floats.pop("quantization_config", None)
    (scratch / "config.json").write_text(json.dumps({**of_floats, "dtype": "float64"}))
    stored = {name: tensor.double().contiguous().clone() for name, tensor in weights.items()}
    save_file(stored, scratch / "model.safetensors", metadata={"format": "pt"})
    model, report = AutoModelForCausalLM.from_pretrained(
        scratch, dtype=torch.float64, experts_implementation="eager", output_loading_info=True
    )
    left = {kind: names for kind, names in report.items() if names}
    assert not left, left
    return model


def log_probabilities(model, ids):
    with torch.no_grad():
        return model(ids[None]).logits[0, :-1].double().log_softmax(-1)


def of_throng(start, folder, ids, bound):
    """Log-probabilities of all tokens after each token of the prompt but the last."""
    isa = ["--isa", "scalar"] if bound == TWO_TERMS else []
    with start(folder, "--max-logprobs", "-1", "--kv-cache-dtype", "f32", *isa) as server:
        answer = server.client().completions.create(
            model=folder.name,
            prompt=ids.tolist(),
            max_tokens=1,
            extra_body={"prompt_logprobs": tiny.VOCABULARY},
        )
    rows = torch.full((len(ids) - 1, tiny.VOCABULARY), torch.nan, dtype=torch.float64)
    for row, given in zip(rows, answer.choices[0].prompt_logprobs[1:], strict=True):
        for token, entry in given.items():
            row[int(token)] = entry["logprob"]
    assert not rows.isnan().any()
    return rows


def distance(found, exact, bound):
    """The mean difference where integers are multiplied, else the largest."""
    difference = (found - exact).abs()
    return (difference.mean() if bound == INT8 else difference.max()).item()


def check(start, folder, model, scratch, bound):
    """Throng's log-probabilities are those of this model in float64, and no longer are when the factors of one matrix grow."""
    ids = tiny.prompt()
    exact = log_probabilities(model, ids)
    limit = bound
    if bound == INT8:
        with Int8Activations(matrix for name, matrix in model.named_parameters() if "_proj" in name):
            limit = distance(log_probabilities(model, ids), exact, bound)
    found = distance(of_throng(start, folder, ids, bound), exact, bound)
    print(f"{folder.name}: {found:.2g} of at most {limit:.2g}")
    assert found <= limit
    wrong = distance(of_throng(start, with_a_fault(folder, scratch / "fault"), ids, bound), exact, bound)
    print(f"{folder.name}: {wrong:.2g} with a fault")
    assert wrong > limit, "a wrong factor is not noticed"


def with_a_fault(folder, copy):
    """A copy of the folder in which the factors of one matrix are wrong by the smallest step of E8M0 or E4M3, or by an eighth."""
    shutil.copytree(folder, copy / folder.name)
    endings = ("scales", "weight_scale", "weight_scale_inv", "proj_scale", "proj_scale_inv", "proj_scales", "proj_weight_scale")
    for file in sorted((copy / folder.name).glob("*.safetensors")):
        found = load_file(file)
        names = [name for name in sorted(found) if name.endswith(endings) and "layers.1" in name and "down_proj" in name]
        if not names:
            continue
        scale = found[names[0]]
        if scale.element_size() == 1:
            # The next larger number, for all but the largest.
            found[names[0]] = (scale.view(torch.uint8) + (scale.view(torch.uint8) & 127 < 125).byte()).view(scale.dtype)
        else:
            found[names[0]] = scale * 1.125
        with safe_open(file, "pt") as opened:
            save_file(found, file, metadata=opened.metadata())
        return copy / folder.name
    raise AssertionError(f"no factors found in {folder}")
