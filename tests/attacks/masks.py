"""Constraints whose masks take long at a large vocabulary, beside streams of another key."""

import contextlib
import http.client
import json
import random
import struct
import threading
import time
from pathlib import Path

from attack import attack
from server import NotStarted, Server

VOCABULARY = 151_936
KEYS = ("healthy-key", "attacker-key")
N_STREAMS = 4
N_ATTACKERS = 32
MEASURED_S = 12
LEAST_RATE = 0.7
MOST_GAP_RATIO = 2
# The machine is shared with the attacker and other programs.
SLACK_MS = 10
CODES = ("regex_too_complex", "grammar_too_complex", "schema_too_complex")


def characters():
    """The characters that stand for bytes in a byte-level vocabulary, by byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + n) for n, byte in enumerate(others)}}


def vocabulary():
    """Bytes, and words of several scripts with and without a blank before them."""
    spelled, chance = characters(), random.Random(7)
    found = {"<s>": 0, "</s>": 1}
    for byte in range(256):
        found.setdefault(spelled[byte], len(found))
    mixed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789.,;:-_\"'{}[]()"
    scripts = ["etaoinshrdlucmfwypvbgkjqxz", mixed, "абвгдежзиклмнопрст", "的一是在不了有和人这中大为上个国我以要他"]
    while len(found) < VOCABULARY:
        letters = chance.choices(scripts, (6, 2, 1, 1))[0]
        word = chance.choice(["", " "]) + "".join(chance.choices(letters, k=chance.randint(2, 8)))
        found.setdefault("".join(spelled[byte] for byte in word.encode()), len(found))
    return found


def write_model(folder):
    """A model of one small layer whose weights are zero, with a large vocabulary: all tokens are equally likely."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden, layer = 64, "model.layers.0."
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    shapes = {
        "model.embed_tokens.weight": [VOCABULARY, hidden],
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
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": n, "content": content, **special} for n, content in enumerate(("<s>", "</s>"))],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocabulary(), "merges": []},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    return folder


def chain(n):
    """Rules each of which may begin with any words."""
    rules = "".join(f'r{i}: /[a-z ]*/ r{i + 1} | "zI"\n' for i in range(n))
    return f'start: r0\n{rules}r{n}: "zI"\n'


def slow_constraints():
    """Small constraints of which each mask takes long."""
    return [
        {"grammar": "start: s\ns: s s | s s s | /[a-z ]+/ | /[a-z]+/"},
        {"grammar": chain(500)},
        {"regex": r"[\p{L}\p{N}\p{P} ]{1,500}"},
        {"grammar": 'start: s\ns: s s | "a" | /[a-z ]{1,40}/ | /[a-p ]{1,80}/ | /[ -~]{1,30}/'},
        {"grammar": "start: e\ne: e e | /[\\p{L}]+/ | /[\\p{L} ]{1,60}/ | /\\p{L}+[ ,.]/"},
    ]


def victim(target, until, arrivals):
    """Reads free streams one after the other, and notes when events come."""
    while time.monotonic() < until[0]:
        asked = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        asked |= {"max_tokens": 2000, "ignore_eos": True, "temperature": 1, "model": "model"}
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(target.host, target.port, timeout=60)
            with contextlib.closing(connection):
                connection.request("POST", "/v1/chat/completions", json.dumps(asked), target.fields())
                own = []
                arrivals.append(own)
                for line in connection.getresponse():
                    if line.startswith(b"data: "):
                        own.append(time.monotonic())
                        if own[-1] > until[0]:
                            break


def pace(arrivals, begin, end):
    """Tokens a second of all streams, and the 99th percentile of the gaps, in ms."""
    inside = [[at for at in own if begin <= at < end] for own in arrivals]
    gaps = sorted(later - earlier for own in inside for earlier, later in zip(own, own[1:]))
    p99 = gaps[int(len(gaps) * 0.99)] * 1000 if gaps else float("inf")
    return sum(map(len, inside)) / (end - begin), p99


def attacker(target, until, n, answers):
    """Sends one small constrained request after the other."""
    constraints = slow_constraints()
    while time.monotonic() < until[0]:
        asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 24, "temperature": 1, "seed": n}
        asked |= {"model": "model", "structured_outputs": constraints[n % len(constraints)]}
        answers.append(target.ask("/v1/chat/completions", asked, timeout=120))
        n += 1


@attack("masks", alone=True, limit_s=240)
def slow_masks(target):
    """Thirty-two small requests of one key whose masks take long: another key's streams keep their pace."""
    folder = write_model(Path(target.folder) / "model")
    try:
        server = Server(target.binary, f"{target.folder}/server.log", (folder,), KEYS)
    except NotStarted as error:
        return target.claim(False, str(error)[:300])
    target.port, target.pid, target.key = server.port, server.pid, KEYS[0]
    until, arrivals, answers = [float("inf")], [], []
    threads = [threading.Thread(target=victim, args=(target, until, arrivals)) for _ in range(N_STREAMS)]
    for thread in threads:
        thread.start()
    time.sleep(3)
    quiet = time.monotonic(), time.monotonic() + MEASURED_S
    time.sleep(MEASURED_S)
    hostile = type(target)(port=server.port, pid=server.pid, key=KEYS[1])
    hostiles = [
        threading.Thread(target=attacker, args=(hostile, until, n, answers), daemon=True) for n in range(N_ATTACKERS)
    ]
    for thread in hostiles:
        thread.start()
    time.sleep(4)
    beside = time.monotonic(), time.monotonic() + MEASURED_S
    time.sleep(MEASURED_S)
    until[0] = 0.0
    for thread in threads:
        thread.join()
    (before, gap_before), (during, gap_during) = pace(arrivals, *quiet), pace(arrivals, *beside)
    target.claim(before > 0 and during >= LEAST_RATE * before, f"{before:.0f} -> {during:.0f} tokens/s")
    target.claim(
        gap_during <= MOST_GAP_RATIO * gap_before + SLACK_MS, f"p99 of gaps {gap_before:.1f} -> {gap_during:.1f} ms"
    )
    seen = sorted({(answer.status, answer.code) for answer in answers}, key=str)
    allowed = all(answer.status == 200 or answer.code in CODES for answer in answers)
    target.claim(allowed and answers, f"{len(answers)} requests of the attacker: {seen}")
    return target.claim(server.stop() == 0, "exit status 0")
