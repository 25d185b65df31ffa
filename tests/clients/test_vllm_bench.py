"""vLLM's benchmark client: the scripts of the last release in which they run without vLLM, from its source package."""

import hashlib
import json
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from conftest import MODEL

VERSION = "0.7.3"
SHA256 = "841cc30bd4ffbc037e8b8bf6dbacbedc60cc0b2abb60366873b185159a1204e6"
TOOLS = Path(__file__).resolve().parents[2] / "target" / "tools"


@pytest.fixture(scope="module")
def script():
    package = TOOLS / f"vllm-{VERSION}.tar.gz"
    if not package.exists():
        package.parent.mkdir(parents=True, exist_ok=True)
        print(f"downloading vllm-{VERSION}.tar.gz, 6 MB, into target/tools")
        with urllib.request.urlopen(url_of(package.name)) as answer:
            package.write_bytes(answer.read())
    assert hashlib.sha256(package.read_bytes()).hexdigest() == SHA256
    with tarfile.open(package) as files:
        wanted = [each for each in files.getmembers() if f"vllm-{VERSION}/benchmarks/b" in each.name]
        files.extractall(TOOLS, wanted, filter="data")
    return TOOLS / f"vllm-{VERSION}" / "benchmarks" / "benchmark_serving.py"


def url_of(file):
    """Where the package index that pip uses has the file."""
    asked = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True)
    index = asked.stdout.strip() or "https://pypi.org/simple"
    accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
    with urllib.request.urlopen(urllib.request.Request(f"{index.rstrip('/')}/vllm/", headers=accept)) as answer:
        return next(each["url"] for each in json.load(answer)["files"] if each["filename"] == file)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A folder with a tokenizer of single bytes, which the client makes its random prompts with."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("backend, endpoint", [("vllm", "/v1/completions"), ("openai-chat", "/v1/chat/completions")])
def test_every_request_is_answered_and_counted(backend, endpoint, script, tokenizer, server, tmp_path):
    command = [sys.executable, script, "--backend", backend, "--base-url", server.url, "--endpoint", endpoint]
    command += ["--model", MODEL, "--tokenizer", tokenizer, "--dataset-name", "random", "--num-prompts", 12]
    command += ["--random-input-len", 32, "--random-output-len", 8, "--ignore-eos", "--request-rate", 20]
    command += ["--save-result", "--result-dir", tmp_path, "--result-filename", "result.json"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["completed"] == 12
    assert result["total_output_tokens"] == 12 * 8
    assert all(0 < first for first in result["ttfts"])
    assert all(len(gaps) > 0 for gaps in result["itls"])
