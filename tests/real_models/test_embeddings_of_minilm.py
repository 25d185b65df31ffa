"""all-MiniLM-L6-v2 as published gives the vectors of sentence-transformers.

`minilm.json` has them for a dozen texts; `make_minilm.py` made it and says with which versions.
"""

import json
import math

import hub
import packages

FOLDER = packages.ROOT / "tests/real_models"


def test_vectors_are_those_of_sentence_transformers(start, minilm_path):
    expected = json.loads((FOLDER / "minilm.json").read_text())
    with start(minilm_path, "--served-model-name", "minilm") as server:
        client = server.client()
        for text, vector in zip(expected["texts"], expected["vectors"]):
            # A longer text is cut to the model's 256 tokens, as sentence-transformers does without asking.
            asked = {"input": text, "encoding_format": "float", "extra_body": {"truncate_prompt_tokens": -1}}
            found = client.embeddings.create(model="minilm", **asked).data[0].embedding
            assert math.isclose(sum(x * x for x in found), 1, abs_tol=1e-5)
            assert max(abs(a - b) for a, b in zip(found, vector)) < 2e-5, text


def test_the_hub_gives_the_same_model(start, minilm_path, tmp_path, monkeypatch):
    """Without the settings of its modules an encoder of another kind would be served."""
    expected = json.loads((FOLDER / "minilm.json").read_text())
    files = {str(file.relative_to(minilm_path)): file.read_bytes() for file in minilm_path.rglob("*") if file.is_file()}
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with hub.running("sentence-transformers/all-MiniLM-L6-v2", files) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        with start("sentence-transformers/all-MiniLM-L6-v2", "--served-model-name", "minilm") as server:
            asked = {"input": expected["texts"][0], "encoding_format": "float"}
            found = server.client().embeddings.create(model="minilm", **asked).data[0].embedding
    assert max(abs(a - b) for a, b in zip(found, expected["vectors"][0])) < 2e-5
    brought = {file.name for file in tmp_path.rglob("snapshots/*/*")}
    assert {"modules.json", "1_Pooling", "sentence_bert_config.json"} <= brought
