"""Models and adapters by hub ids, from a hub on this machine."""

import hub
import pytest
from conftest import ROOT
from test_reference_models import FIXTURES, tensors

STARTER = ROOT / "starter/models/throng-starter.gguf"


@pytest.fixture()
def cache(monkeypatch, tmp_path):
    """An empty cache, and a hub's address for those who ask."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return lambda address: monkeypatch.setenv("HF_ENDPOINT", address)


def test_the_usual_format_of_a_gguf_repository_needs_no_name(start, cache, tmp_path):
    files = {"starter-Q8_0.gguf": b"not a model", "starter-Q4_K_M.gguf": STARTER.read_bytes(), "README.md": b"#"}
    with hub.running("org/starter-GGUF", files) as address:
        cache(address)
        with start("org/starter-GGUF") as server:
            answer = server.client().completions.create(model="org/starter-GGUF", prompt="Once", max_tokens=4)
            assert answer.usage.completion_tokens > 0
    assert not list(tmp_path.rglob("*Q8_0*"))


def test_an_adapter_of_the_hub(start, cache):
    folder = FIXTURES / "adapters/llama-r8"
    files = {name: (folder / name).read_bytes() for name in ("adapter_config.json", "adapter_model.safetensors")}
    expected = tensors(folder / "expected.safetensors")
    ids, greedy = list(expected["input_ids"][1]), list(expected["greedy"][1])
    with hub.running("org/adapter", {**files, "README.md": b"#"}) as address:
        cache(address)
        with start(FIXTURES / "llama", "--lora-modules", "other=org/adapter") as server:
            asked = {"prompt": ids, "max_tokens": len(greedy), "temperature": 0}
            extra = {"return_token_ids": True, "ignore_eos": True}
            answer = server.client().completions.create(model="other", **asked, extra_body=extra)
            assert answer.choices[0].model_dump()["token_ids"] == greedy
        # An adapter is no model of its own, and says so.
        with pytest.raises(RuntimeError, match="--lora-modules"):
            with start("org/adapter"):
                pass
