"""Makes a GGUF model that says a given text, so that what the server makes of an answer can be tried on any answer, or one that
says several texts in turn, so that an agent has a whole task of tool calls to do.

Every token has one fixed successor: a llama of one layer whose attention and network add nothing, and whose output rows are the sums
of the embeddings of the tokens before them. It uses the standard library only.

    from replay import write
    write("says.gguf", ["<tool_call>", '{"name": "now", "arguments": {}}', "</tool_call>"], control=["<tool_call>", "</tool_call>"])
"""

import random
import struct
from pathlib import Path

HIDDEN = 256
FEED_FORWARD = 32
CONTEXT = 4096
END, START = "<|end|>", "<|go|>"
MESSAGES = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"

# Types of GGUF's values, of its tensors and of tokens.
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
TENSOR_F32, TENSOR_F16 = 0, 1
NORMAL, CONTROL, ADDED = 1, 3, 4
ALIGNMENT = 32


def write_turns(path, turns, aside="Nothing to do."):
    """Writes the model that says `turns`, one text for each turn of a conversation that has tools, and `aside` in one without tools,
    as agents ask for titles and summaries. It sees nothing of the conversation but how many answers it has, and whether `aside` is the
    summary of those that it has no more: then it says the last text. So a prompt is one token, however long the instructions of an
    agent are. Texts may begin with thoughts, `<think>…</think>`.
    """
    starts = [f"<|turn{i}|>" for i in range(len(turns))]
    vocabulary, used = Vocabulary([END, START, *starts], ()), set()
    scripts = [
        [vocabulary.ids[start], *vocabulary.script([text], (), used), vocabulary.ids[END]]
        for start, text in zip([*starts, START], [*turns, aside])
    ]
    last = len(turns) - 1
    thinks = "<think>" if any("<think>" in turn for turn in turns) else ""
    template = (
        "{%- set n = messages | selectattr('role', 'equalto', 'assistant') | list | length -%}"
        f"{{%- set n = {last} if {aside!r} in (messages | selectattr('role', 'equalto', 'user') | list | string) else n -%}}"
        f"{{%- if tools -%}}{{{{ {starts}[n if n < {last} else {last}] }}}}{{%- else -%}}{START}{{%- endif -%}}"
        f"{{# <tool_call> {thinks} #}}"
    )
    save(path, vocabulary, template, scripts)


def write_infill(path, names, answer):
    """Writes the model that says `answer` behind the last of its first three control tokens, as models of code fill a gap."""
    vocabulary = Vocabulary([END, START, *names], ())
    script = [vocabulary.ids[names[2]], *vocabulary.script([answer], (), set()), vocabulary.ids[END]]
    save(path, vocabulary, MESSAGES, [script])


def write(path, parts, template=MESSAGES, added=(), control=()):
    """Writes the model that says the `parts` one after the other, then ends.

    Parts that are among `added` or `control` are single tokens: added ones, or control tokens. `template` is the chat template, behind
    which the token stands that starts the script.
    """
    vocabulary = Vocabulary([END, START, *control], added)
    script = [vocabulary.ids[START], *vocabulary.script(parts, {*added, *control}, set()), vocabulary.ids[END]]
    save(path, vocabulary, template + START, [script])


def save(path, vocabulary, template, scripts):
    """Writes the model whose tokens follow each other as in the scripts."""
    metadata = {
        "general.architecture": "llama",
        "llama.vocab_size": len(vocabulary.tokens),
        "llama.block_count": 1,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": 1,
        "llama.attention.head_count_kv": 1,
        "llama.rope.dimension_count": HIDDEN,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocabulary.tokens,
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.bos_token_id": vocabulary.ids[END],
        "tokenizer.ggml.eos_token_id": vocabulary.ids[END],
        "tokenizer.chat_template": template,
    }
    values = {key: value_of(value) for key, value in metadata.items()}
    n = len(vocabulary.types)
    values["tokenizer.ggml.token_type"] = (ARRAY, struct.pack(f"<IQ{n}i", 5, n, *vocabulary.types))
    Path(path).write_bytes(file_of(values, tensors_of(scripts, n)))


class Vocabulary:
    """Every byte, the tokens with a meaning, and the pieces of the script, each of which stands in it once."""

    def __init__(self, control, added):
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in plain]
        spelled = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
        self.spelled = [spelled[byte] for byte in range(256)]
        self.tokens = [*self.spelled, *control, *added]
        self.types = [NORMAL] * 256 + [CONTROL] * len(control) + [ADDED] * len(added)
        self.ids = {token: i for i, token in enumerate(self.tokens)}

    def script(self, parts, whole, used):
        """The tokens of the parts, of which none is among the texts `used` before."""
        script = []
        for part in parts:
            if part in whole:
                script.append(self.ids[part])
                continue
            for piece in pieces(part.encode(), used):
                token = "".join(self.spelled[byte] for byte in piece)
                self.ids[token] = len(self.tokens)
                script.append(len(self.tokens))
                self.tokens.append(token)
                self.types.append(NORMAL)
        return script


def pieces(text, used):
    """Cuts bytes into pieces of two bytes or more that are not in `used`, to which they are added."""
    cut, at = [], 0
    while at < len(text):
        n = 2
        while at + n <= len(text) and text[at : at + n] in used:
            n += 1
        piece = text[at : at + n]
        at += n
        # What is left at the end may be too short, or have stood before.
        while cut and (len(piece) < 2 or piece in used):
            last = cut.pop()
            used.discard(last)
            piece = last + piece
        if len(piece) < 2 or piece in used:
            raise ValueError(f"{piece!r} stands in the script twice, or is a single byte")
        used.add(piece)
        cut.append(piece)
    return cut


def tensors_of(scripts, n_tokens):
    """Name, dimensions, type and bytes of each tensor."""
    numbers = random.Random(1)
    rows = [[numbers.choice((-1.0, 1.0)) for _ in range(HIDDEN)] for _ in range(n_tokens)]
    output = [[0.0] * HIDDEN for _ in range(n_tokens)]
    successors = {}
    pairs = [pair for script in scripts for pair in zip(script, script[1:])]
    for token, following in pairs:
        if successors.setdefault(token, following) != following:
            raise ValueError(f"two tokens follow the token {token}")
        output[following] = [x + 0.25 * y for x, y in zip(output[following], rows[token])]
    table = lambda rows: ([HIDDEN, n_tokens], TENSOR_F16, b"".join(struct.pack(f"<{HIDDEN}e", *row) for row in rows))
    zeros = lambda n_rows, n_columns: ([n_columns, n_rows], TENSOR_F16, bytes(2 * n_rows * n_columns))
    gains = ([HIDDEN], TENSOR_F32, struct.pack(f"<{HIDDEN}f", *[1.0] * HIDDEN))
    return {
        "token_embd": table(rows),
        "output": table(output),
        "output_norm": gains,
        "blk.0.attn_norm": gains,
        "blk.0.ffn_norm": gains,
        **{f"blk.0.attn_{name}": zeros(HIDDEN, HIDDEN) for name in ("q", "k", "v", "output")},
        "blk.0.ffn_gate": zeros(FEED_FORWARD, HIDDEN),
        "blk.0.ffn_up": zeros(FEED_FORWARD, HIDDEN),
        "blk.0.ffn_down": zeros(HIDDEN, FEED_FORWARD),
    }


def text_of(text):
    """A text as GGUF has it."""
    return struct.pack("<Q", len(text.encode())) + text.encode()


def value_of(value):
    """Type and bytes of a value of the metadata."""
    match value:
        case bool():
            return BOOL, struct.pack("<?", value)
        case int():
            return U32, struct.pack("<I", value)
        case float():
            return F32, struct.pack("<f", value)
        case str():
            return STRING, text_of(value)
        case list():
            return ARRAY, struct.pack("<IQ", STRING, len(value)) + b"".join(map(text_of, value))


def file_of(metadata, tensors):
    """The bytes of a GGUF file."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text_of(key) + struct.pack("<I", kind) + raw for key, (kind, raw) in metadata.items())
    body = b""
    for name, (dimensions, kind, raw) in tensors.items():
        head += text_of(name + ".weight") + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        head += struct.pack("<IQ", kind, len(body))
        body += raw + bytes(-len(raw) % ALIGNMENT)
    return head + bytes(-len(head) % ALIGNMENT) + body
