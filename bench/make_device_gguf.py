#!/usr/bin/env python3
"""Write a GGUF model of a real shape with random codes, for speed measurements on a device.

    make_device_gguf.py --shape llama-8b --type q8_0 --out DIR/llama-8b-q8_0.gguf

Unlike make_synthetic_gguf.py it needs nothing but Python, and writes 8 GB in seconds: blocks of random codes
under one scale are repeated. The model has no vocabulary of text, so `throng bench` runs it and a chat does not.
"""
import argparse
import random
import struct

SHAPES = {
    # layers, hidden, ffn, heads, kv heads, head_dim, vocabulary, context: Llama 3.1 8B
    "llama-8b": dict(layers=32, hidden=4096, ffn=14336, heads=32, kv=8, hd=128, vocab=128256, ctx=131072, rope=5e5),
    "tiny": dict(layers=4, hidden=256, ffn=768, heads=8, kv=2, hd=32, vocab=2048, ctx=4096, rope=1e4),
}

#: Number in the file, elements and bytes of a block, and the standard deviation of codes under a scale of 1.
TYPES = {"f32": (0, 1, 4), "q8_0": (8, 32, 34), "q4_k": (12, 256, 144)}
N_PATTERN = 4096


def half(number):
    return struct.pack("<e", number)


def block(kind, deviation, draw):
    """A block of random codes whose numbers have about this standard deviation."""
    if kind == "q8_0":
        # Codes from -127 to 127, without the code -128 that quantizers never write.
        return half(deviation / 73.3) + bytes((draw.randrange(255) - 127) & 0xFF for _ in range(32))
    # Scales and mins of 32 in all eight groups: numbers are d * 32 * code - dmin * 32, codes from 0 to 15.
    d = deviation / (32 * 4.61)
    # Those of the last four groups: the low four bits stand in the last bytes, the high two above the others' six.
    scales = bytes([32 | (32 >> 4) << 6] * 8) + bytes(4)
    return half(d) + half(d * 7.5) + scales + draw.randbytes(128)


def text(string):
    data = string.encode()
    return struct.pack("<Q", len(data)) + data


def metadata(shape):
    def u32(key, number):
        return text("llama." + key) + struct.pack("<II", 4, number)

    def f32(key, number):
        return text("llama." + key) + struct.pack("<If", 6, number)

    return [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        u32("context_length", shape["ctx"]),
        u32("embedding_length", shape["hidden"]),
        u32("block_count", shape["layers"]),
        u32("feed_forward_length", shape["ffn"]),
        u32("attention.head_count", shape["heads"]),
        u32("attention.head_count_kv", shape["kv"]),
        u32("attention.key_length", shape["hd"]),
        u32("attention.value_length", shape["hd"]),
        f32("attention.layer_norm_rms_epsilon", 1e-5),
        f32("rope.freq_base", shape["rope"]),
    ]


def tensors(shape, kind):
    """Name, rows, columns and type of each tensor; vectors have no rows."""
    hidden, query, key = shape["hidden"], shape["heads"] * shape["hd"], shape["kv"] * shape["hd"]
    yield "token_embd.weight", shape["vocab"], hidden, kind
    yield "output.weight", shape["vocab"], hidden, kind
    yield "output_norm.weight", None, hidden, "f32"
    for layer in range(shape["layers"]):
        def name(part):
            return f"blk.{layer}.{part}.weight"
        yield name("attn_norm"), None, hidden, "f32"
        yield name("ffn_norm"), None, hidden, "f32"
        yield name("attn_q"), query, hidden, kind
        yield name("attn_k"), key, hidden, kind
        yield name("attn_v"), key, hidden, kind
        yield name("attn_output"), hidden, query, kind
        yield name("ffn_gate"), shape["ffn"], hidden, kind
        yield name("ffn_up"), shape["ffn"], hidden, kind
        yield name("ffn_down"), hidden, shape["ffn"], kind


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shape", choices=sorted(SHAPES), required=True)
    p.add_argument("--type", choices=["q8_0", "q4_k"], required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--seed", type=int, default=1)
    arguments = p.parse_args()
    shape, kind = SHAPES[arguments.shape], arguments.type
    draw = random.Random(arguments.seed)
    deviation = shape["hidden"] ** -0.5
    pattern = b"".join(block(kind, deviation, draw) for _ in range(N_PATTERN))
    infos, sizes, offset = [], [], 0
    for name, rows, cols, of in tensors(shape, kind):
        number, elements, n_bytes = TYPES[of]
        dims = [cols] if rows is None else [cols, rows]
        size = cols * (rows or 1) // elements * n_bytes
        head = text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", dim) for dim in dims)
        infos.append(head + struct.pack("<IQ", number, offset))
        sizes.append((size, of))
        offset += (size + 31) // 32 * 32
    pairs = metadata(shape)
    with open(arguments.out, "wb") as out:
        out.write(b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(pairs)) + b"".join(pairs) + b"".join(infos))
        out.write(bytes(-out.tell() % 32))
        for size, of in sizes:
            if of == "f32":
                out.write(struct.pack("<f", 1.0) * (size // 4))
            else:
                whole, rest = divmod(size, len(pattern))
                for _ in range(whole):
                    out.write(pattern)
                out.write(pattern[:rest])
            out.write(bytes(-size % 32))


if __name__ == "__main__":
    main()
