"""The list of keys that transformers reads (`crates/arch/src/families/read_keys/keys.jsonl`) is what its generator writes from the version
of transformers that the list names, which is the one that these tests have."""

import importlib.metadata
import json
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "crates/arch/src/families/read_keys"


def test_the_list_of_keys_is_what_its_generator_writes():
    version = json.loads((FOLDER / "keys.jsonl").read_text().splitlines()[0])["transformers"]
    found = importlib.metadata.version("transformers")
    if found != version:
        pytest.skip(f"transformers is {found}, the list is of {version}")
    result = subprocess.run([sys.executable, FOLDER / "generate.py", "--check"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
