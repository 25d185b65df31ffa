"""Tiny models of every architecture, served over HTTP, give the logits of transformers.

The models are fixtures of `crates/model`; `expected.safetensors` beside each has 48 token ids, the
logits of transformers at each of them and its 32 greedy tokens.
"""

import json
import math
import struct

import pytest
from conftest import ROOT

FIXTURES = ROOT / "crates/model/tests/fixtures"
MODELS = sorted(folder.parent.name for folder in FIXTURES.glob("*/expected.safetensors"))
TOLERANCE = 2e-4
# Activations that are multiplied with MXFP4 are rounded to two terms of int8.
TOLERANCE_OF_MXFP4 = 6e-4


def tensors(path):
    """Shape and flat values of each tensor of a safetensors file."""
    data = path.read_bytes()
    (header_bytes,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + header_bytes])
    body = memoryview(data)[8 + header_bytes :]
    letters = {"F32": "f", "I64": "q", "I32": "i"}
    found = {}
    for name, tensor in header.items():
        if name != "__metadata__":
            start, end = tensor["data_offsets"]
            letter = letters[tensor["dtype"]]
            count = (end - start) // struct.calcsize(letter)
            found[name] = (tensor["shape"], struct.unpack(f"<{count}{letter}", body[start:end]))
    return found


def log_softmax(logits):
    top = max(logits)
    total = top + math.log(sum(math.exp(value - top) for value in logits))
    return [value - total for value in logits]


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_tokens_are_those_of_transformers(start, name):
    expected = tensors(FIXTURES / name / "expected.safetensors")
    ids = list(expected["input_ids"][1])
    (n_positions, n_tokens), logits = expected["logits"]
    greedy = list(expected["greedy"][1])
    with start(FIXTURES / name, "--max-logprobs", "-1") as server:
        client = server.client()
        # The token after the last position is the first greedy one: its logits are requested as an output's.
        answer = client.completions.create(
            model=name,
            prompt=ids,
            max_tokens=len(greedy),
            temperature=0,
            logprobs=n_tokens,
            extra_body={"prompt_logprobs": n_tokens, "ignore_eos": True, "return_token_ids": True},
        ).choices[0]
    assert answer.token_ids == greedy
    assert answer.prompt_logprobs[0] is None
    for position in range(n_positions - 1):
        exact = log_softmax(logits[position * n_tokens : (position + 1) * n_tokens])
        given = answer.prompt_logprobs[position + 1]
        assert len(given) == n_tokens
        worst = max(abs(entry["logprob"] - exact[int(token)]) for token, entry in given.items())
        tolerance = TOLERANCE_OF_MXFP4 if name.endswith("mxfp4") else TOLERANCE
        assert worst <= tolerance, f"{name}: position {position} differs by {worst}"


def test_every_supported_architecture_is_here():
    assert len(MODELS) >= 13, f"fixtures missing under {FIXTURES}"
