"""The models that are measured: random weights at real shapes, made once. Only their speed is meaningful."""

import sys
from pathlib import Path

from . import llama_cpp_build
from .places import run

MAKER = Path(__file__).resolve().parents[1] / "make_synthetic_gguf.py"
#: Types that make_synthetic_gguf.py lacks, and their names in llama-quantize.
QUANTIZED_BY_LLAMA_CPP = {"q4_k_m": "Q4_K_M", "q5_k_m": "Q5_K_M", "q6_k": "Q6_K"}


def path(places, name):
    """The file of the model `SHAPE-TYPE`, made when absent."""
    file = places.models / f"{name}.gguf"
    if file.exists():
        return file
    places.models.mkdir(parents=True, exist_ok=True)
    shape, kind = name.rsplit("-", 1)
    unfinished = file.with_suffix(".unfinished")
    if kind in QUANTIZED_BY_LLAMA_CPP:
        source = path(places, f"{shape}-f16")
        run(llama_cpp_build.programs(places).command("llama-quantize", source, unfinished, QUANTIZED_BY_LLAMA_CPP[kind]))
    else:
        run([places.tools() / "python", MAKER, "--shape", shape, "--type", kind, "--out", unfinished])
    print(file, file=sys.stderr)
    return unfinished.rename(file)
