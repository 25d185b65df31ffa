"""Prints the table of docs/models.md: what each weight format and each type of keys and values costs a trained model on real text.

    target/e2e-venv/bin/python tests/real_models/quantization_table.py --throng target/release/throng [--tokens 2000]

SmolLM2-135M-Instruct is expanded to float32 once (its published file is Q4_1: those numbers are the model here), and each
format is made from that by `--quantize`. Divergences are from a forward pass of numpy in float32 over `text.txt`.
"""

import argparse
import sys
from pathlib import Path

import gguf
import packages
from divergence import N_REPORTED, Comparison
from engines import Throng
from float32 import Float32Model
from gguf.quants import dequantize

sys.path.insert(0, str(packages.ROOT / "tests"))
from conftest import Server  # noqa: E402

WEIGHTS = [None, "q8_0", "q4_k", "q4_0"]
KV_TYPES = ["f32", "f16", "bf16", "q8_0"]


def expand(source):
    """The same model with all tensors in float32."""
    target = source.with_name(source.stem + ".F32.gguf")
    if target.exists():
        return target
    reader = gguf.GGUFReader(source)
    unfinished = target.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub_type)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        writer.add_tensor(tensor.name, values.astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(target)
    return target


def measure(binary, model, ids, exact, *flags):
    """The comparison of a server with those flags."""
    server = Server(binary, model, "--max-logprobs", N_REPORTED, *flags, "--served-model-name", "measured")
    try:
        return Comparison(exact, ids, Throng(server, "measured").reported(ids))
    finally:
        server.stop()


def token_ids(binary, model, n_tokens):
    """The first tokens of the text."""
    server = Server(binary, model, "--served-model-name", "measured")
    try:
        return Throng(server, "measured").tokens(packages.TEXT.read_text(), n_tokens)
    finally:
        server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--throng", required=True, type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--tokens", type=int, default=2000)
    options = parser.parse_args()
    published = packages.smollm2()
    model = expand(published)
    ids = token_ids(options.throng, model, options.tokens)
    exact = Float32Model(model).log_probabilities(ids)[:-1]
    print(f"{len(ids)} tokens\n")
    print("| weights | keys and values | KL, nats | best token equal | perplexity |")
    print("| --- | --- | --- | --- | --- |")
    rows = [(weights, "f32") for weights in WEIGHTS] + [(None, kv_type) for kv_type in KV_TYPES[1:]]
    for weights, kv_type in rows:
        flags = ["--kv-cache-dtype", kv_type, *(["--quantize", weights] if weights else [])]
        found = measure(options.throng, model, ids, exact, *flags)
        name = weights or "f32"
        print(
            f"| `{name}` | `{kv_type}` | {found.mean_divergence:.6f} | {found.best_token_rate:.2%} | {found.perplexity:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
