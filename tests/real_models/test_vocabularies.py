"""Folders without a `tokenizer.json`, with the vocabulary files that Mistral publishes, give the ids of mistral-common and SentencePiece.

`mistral_ids.json` has them; `make_mistral_ids.py` made it.
"""

import json
import struct

import httpx
import packages
import pytest

WIDTH = 8


def model(folder, vocabulary, n_tokens):
    """A folder with a model of one layer without knowledge and this vocabulary file."""
    folder.mkdir()
    settings = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 1,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": WIDTH, "vocab_size": n_tokens, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / vocabulary.name).write_bytes(vocabulary.read_bytes())
    layer = "model.layers.0."
    square = [f"self_attn.{part}_proj.weight" for part in "qkvo"] + [f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")]
    shapes = {"model.embed_tokens.weight": [n_tokens, WIDTH], "model.norm.weight": [WIDTH]}
    shapes |= {layer + name: [WIDTH, WIDTH] for name in square}
    shapes |= {layer + name: [WIDTH] for name in ("input_layernorm.weight", "post_attention_layernorm.weight")}
    header, end = {}, 0
    for name, shape in shapes.items():
        n_bytes = 2 * (shape[0] * shape[-1] if len(shape) == 2 else shape[0])
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + n_bytes]}
        end += n_bytes
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    return folder


@pytest.mark.parametrize("name, n_tokens", [("tekken.json", 131_072), ("tokenizer.model", 32_768)])
def test_a_folder_without_tokenizer_json(start, mistral_vocabularies, tmp_path, name, n_tokens):
    expected = json.loads((packages.ROOT / "tests/real_models/mistral_ids.json").read_text())
    with start(model(tmp_path / "model", mistral_vocabularies / name, n_tokens)) as server:
        for text, ids in zip(expected["texts"], expected["ids"][name], strict=True):
            asked = {"prompt": text, "add_special_tokens": False}
            found = httpx.post(server.url + "/tokenize", json=asked, timeout=60).json()
            assert found["tokens"] == ids, text[:100]
            back = httpx.post(server.url + "/detokenize", json={"tokens": ids}, timeout=60).json()
            assert back["prompt"] == text
        # A sequence begins with BOS, and nobody's text becomes a control token.
        tokens = httpx.post(server.url + "/tokenize", json={"prompt": "[INST] a"}, timeout=60).json()["tokens"]
        assert tokens[0] == 1
