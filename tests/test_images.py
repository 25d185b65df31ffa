"""Tiny models with a vision part, served over HTTP, give the greedy tokens of transformers for pictures in a chat.

The pictures are fixtures of `crates/images`, the model of `crates/vision`; the models of `../shared/vision` are tested
where they are. Only pictures without JPEG's loss are compared.
"""

import base64
import json
import os
import struct
from pathlib import Path

import pytest
from conftest import ROOT

PICTURES = ROOT / "crates/images/tests/fixtures"
OWN = ROOT / "crates/vision/tests/fixtures/qwen3-vl"
SHARED = Path(os.environ.get("THRONG_SHARED", ROOT.parent / "shared")) / "vision"
MODELS = [OWN, *(folder.parent for folder in sorted(SHARED.glob("*/cases.json")))]


def integers(path, name):
    """A tensor of 64-bit integers of a safetensors file."""
    data = path.read_bytes()
    (header_bytes,) = struct.unpack("<Q", data[:8])
    start, end = json.loads(data[8 : 8 + header_bytes])[name]["data_offsets"]
    return list(struct.unpack(f"<{(end - start) // 8}q", data[8 + header_bytes :][start:end]))


def part(item):
    """A content part of a case in OpenAI's form."""
    if item["type"] != "image":
        return item
    data = base64.b64encode((PICTURES / item["image"]).read_bytes()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def messages_of(case):
    def content(parts):
        return parts if isinstance(parts, str) else [part(item) for item in parts]

    return [{**message, "content": content(message["content"])} for message in case["messages"]]


@pytest.mark.parametrize("folder", MODELS, ids=lambda folder: f"{folder.parent.parent.name}-{folder.name}")
def test_greedy_tokens_are_those_of_transformers(start, folder):
    cases = json.loads((folder / "cases.json").read_text())
    exact = [case for case in cases["cases"] if all(name.endswith(".png") for name in case["images"])]
    assert exact
    with start(folder) as server:
        client = server.client()
        for case in exact:
            answer = client.chat.completions.create(
                model=folder.name,
                messages=messages_of(case),
                max_tokens=16,
                temperature=0,
                extra_body={"ignore_eos": True, "return_token_ids": True, "skip_special_tokens": False},
            )
            name = f"{folder.name}, {case['name']}"
            assert answer.usage.prompt_tokens == case["tokens"], name
            greedy = integers(folder / "expected.safetensors", f"{case['name']}.greedy")
            assert answer.choices[0].token_ids == greedy, name
