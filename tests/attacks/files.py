"""Model files that change, block or have false contents."""

import json
import os
import shutil
import struct
import subprocess
import threading
import time
from pathlib import Path

from attack import attack
from server import NotStarted, Server

STARTER = Path(__file__).resolve().parents[2] / "starter/models/throng-starter.gguf"
START_LIMIT_S = 20


def started(target, model, *more, limit_s=START_LIMIT_S, memory_kib=8_000_000):
    """Starts a server with this model and limit of memory; returns the exit status, or "serves" or "hangs"."""
    line = f'ulimit -v {memory_kib}; exec "$0" serve --port 0 "$@"'
    process = subprocess.Popen(
        ["bash", "-c", line, target.binary, str(model), *map(str, more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    serving = threading.Event()

    def read():
        for row in process.stdout:
            if b"Serving on" in row:
                serving.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    end = time.monotonic() + limit_s
    while process.poll() is None and not serving.is_set() and time.monotonic() < end:
        time.sleep(0.002)
    status = process.poll()
    if status is None:
        status = "serves" if serving.is_set() else "hangs"
    process.kill()
    process.wait()
    reader.join(1)
    return status


@attack("files", alone=True, limit_s=90)
def truncated_while_loaded(target):
    """A model file becomes shorter while it is read: an error, never a signal."""
    copy = Path(target.folder) / "model.gguf"
    statuses = {}
    for _ in range(80):
        shutil.copy(STARTER, copy)

        def cut(delay=target.random.uniform(0.0, 0.06), size=target.random.randrange(0, STARTER.stat().st_size)):
            time.sleep(delay)
            os.truncate(copy, size)

        cutter = threading.Thread(target=cut)
        cutter.start()
        status = started(target, copy)
        cutter.join()
        statuses[status] = statuses.get(status, 0) + 1
    copy.unlink()
    target.claim(set(statuses) <= {1, "serves"}, f"80 starts while the file is cut: {statuses}")


@attack("files", alone=True)
def truncated_while_served(target):
    """A model file becomes empty while the server runs: requests are answered or fail, the process does not crash."""
    copy = Path(target.folder) / "model.gguf"
    shutil.copy(STARTER, copy)
    try:
        server = Server(target.binary, f"{target.folder}/server.log", (copy,))
    except NotStarted as error:
        return target.claim(False, str(error)[:200])
    target.port, target.pid = server.port, server.pid
    name = json.loads(target.ask("/v1/models").body)["data"][0]["id"]
    os.truncate(copy, 0)
    answer = target.chat(max_tokens=50, model=name)
    target.claim(
        server.is_running() and answer.status == 200,
        f"a chat: {answer.status}, {'alive' if server.is_running() else 'gone'}",
    )
    copy.unlink()
    return target.claim(server.stop() == 0, "exit status 0")


@attack("files", alone=True)
def cut_and_flipped(target):
    """120 files with one byte changed in the head, or an end missing: an error or a model, never a signal."""
    whole, copy, statuses = STARTER.read_bytes(), Path(target.folder) / "model.gguf", {}
    for n in range(120):
        data = bytearray(whole)
        if n % 3 == 0:
            data = data[: target.random.randrange(len(data))]
        else:
            data[target.random.randrange(20_000)] ^= 1 << target.random.randrange(8)
        copy.write_bytes(data)
        status = started(target, copy, limit_s=10)
        statuses[status] = statuses.get(status, 0) + 1
    copy.unlink()
    target.claim(set(statuses) <= {1, "serves"}, f"120 broken files: {statuses}")


def tiny_folder(folder, normalizer=None):
    """A model folder of one layer whose weights are all zero, with a tokenizer of single letters."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = "abcdefghijklmnopqrstuvwxyz "
    hidden, rows = 64, 64
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": rows,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": [rows, hidden],
        "model.norm.weight": [hidden],
        layer + "input_layernorm.weight": [hidden],
        layer + "post_attention_layernorm.weight": [hidden],
        **{f"{layer}self_attn.{name}_proj.weight": [hidden, hidden] for name in "qkvo"},
        **{f"{layer}mlp.{name}_proj.weight": [64, hidden] for name in ("gate", "up", "down")},
    }
    head, offset = {}, 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(head).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))
    vocabulary = {"<s>": 0, "</s>": 1, **{letter: n + 2 for n, letter in enumerate(letters)}}
    vocabulary.update({f"token{n}": n for n in range(len(vocabulary), rows)})
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<s>"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    return folder


def growing(n):
    """Normalizers that make each letter ten times as long, n times over."""
    steps = [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10} for _ in range(n)]
    return {"type": "Sequence", "normalizers": steps}


@attack("files", alone=True, limit_s=60)
def growing_normalizer(target):
    """A tokenizer whose normalizer turns eight bytes into gigabytes: refused at the start, or 400 for the text."""
    folder = tiny_folder(Path(target.folder) / "plain")
    status = started(target, folder)
    target.claim(status == "serves", f"the same folder without a normalizer: {status}")
    folder = tiny_folder(Path(target.folder) / "growing", growing(8))
    try:
        server = Server(target.binary, f"{target.folder}/server.log", (folder,), address_space=6 << 30)
    except NotStarted as error:
        return target.claim("status 1" in str(error), f"refused at the start: {str(error)[-160:]}")
    target.port, target.pid = server.port, server.pid
    answer = target.ask("/tokenize", {"prompt": "aaaaaaaa"}, timeout=20)
    peak = 0
    if server.is_running():
        status = Path(f"/proc/{server.pid}/status").read_text()
        peak = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024
    ok = answer.status == 400 and peak < 400 and answer.seconds < 5
    server.stop(5)
    return target.claim(ok, f"8 bytes: {answer.status} in {answer.seconds:.1f} s, peak {peak:.0f} MiB (at most 400)")


@attack("files", alone=True, limit_s=150)
def pipes_and_devices(target):
    """Pipes, devices, folders and symlink loops in place of files: refused within seconds."""
    wrong = []
    names = ("config.json", "tokenizer.json", "model.safetensors", "tokenizer_config.json")
    kinds = {
        "a pipe": lambda path: os.mkfifo(path),
        "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
        "/dev/stdin": lambda path: path.symlink_to("/dev/stdin"),
        "a folder": lambda path: path.mkdir(),
        "a loop": lambda path: path.symlink_to(path),
    }
    for kind, make in kinds.items():
        for name in names:
            folder = Path(target.folder) / "odd"
            shutil.rmtree(folder, ignore_errors=True)
            tiny_folder(folder)
            (folder / name).unlink()
            make(folder / name)
            status = started(target, folder, limit_s=3)
            if status not in (1, "serves") or (status == "serves" and kind == "/dev/zero"):
                wrong.append(f"{name} is {kind}: {status}")
    shutil.rmtree(Path(target.folder) / "odd", ignore_errors=True)
    pipe = Path(target.folder) / "model.gguf"
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    for model in (pipe, "/dev/zero", "/dev/null"):
        status = started(target, model, limit_s=3)
        if status != 1:
            wrong.append(f"{model}: {status}")
    pipe.unlink()
    target.claim(not wrong, f"of 23 odd files not refused: {', '.join(wrong) or 'none'}")


@attack("files", alone=True)
def crafted_heads(target):
    """GGUF heads with impossible counts and sizes: an error within seconds and little memory."""
    magic = b"GGUF" + struct.pack("<I", 3)
    most = (1 << 64) - 1
    heads = {
        "most tensors": magic + struct.pack("<QQ", most, 0),
        "most fields": magic + struct.pack("<QQ", 0, most),
        "a key of 2^63 bytes": magic + struct.pack("<QQQ", 0, 1, 1 << 63) + b"a" * 100,
        "an array of 2^60": magic + struct.pack("<QQQ", 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 4, 1 << 60),
        "arrays in arrays": magic + struct.pack("<QQQ", 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 9, 1) * 100_000,
        "empty": b"",
        "magic only": b"GGUF",
        "another version": b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
    }
    path = Path(target.folder) / "model.gguf"
    wrong = []
    for what, data in heads.items():
        path.write_bytes(data)
        status = started(target, path, limit_s=5, memory_kib=3_000_000)
        if status != 1:
            wrong.append(f"{what}: {status}")
    path.unlink()
    target.claim(not wrong, f"heads not refused: {', '.join(wrong) or 'none'}")
