"""Tokenizer and chat format: a byte-level BPE trained on the text, and the template that lays out a conversation."""

import json
import re
from itertools import chain
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from corpus.generate import conversations
from corpus.words import ALL_WORDS, CITIES, NAMES

VOCABULARY = 4096
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = [END_OF_TEXT, TURN_START, TURN_END]
TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text()

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pre-tokenizer of Qwen2, known to every GGUF reader as `qwen2`: each digit is a token of its own."""

KNOWN_WORD_REPEATS = 150
"""Each word of the lists is added to the training text this often, at the start of a line and after a space, so that it
is one token in both places, in small letters and in capitals; then writing it in capitals means replacing one token."""

ASSISTANT_TURN = re.compile(re.escape(TURN_START) + "assistant\n(.*?" + re.escape(TURN_END) + ")", re.DOTALL)


def chat_renderer():
    """The template as a function, in the environment of transformers."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(TEMPLATE)

    def render(messages: list[dict], tools: list[dict], add_generation_prompt: bool = False) -> str:
        return template.render(messages=messages, tools=tools, add_generation_prompt=add_generation_prompt)

    return render


def train_tokenizer(path: Path, seed: int, n_conversations: int) -> Tokenizer:
    """Trains the BPE on rendered conversations and saves it as `tokenizer.json`."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    render = chat_renderer()
    known = [*ALL_WORDS, *map(str.upper, ALL_WORDS), *NAMES, *CITIES]
    lists = [f"{word} {word}\n" * KNOWN_WORD_REPEATS for word in known]
    texts = (
        re.sub("|".join(map(re.escape, SPECIAL_TOKENS)), "\n", render(messages, tools))
        for messages, tools in conversations(seed, n_conversations)
    )
    tokenizer.train_from_iterator(chain(texts, lists), trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY, tokenizer.get_vocab_size()
    tokenizer.save(str(path))
    return tokenizer


def encode_chat(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[bool]]:
    """Tokens of a rendered conversation, and which of them are the assistant's (including its end of turn)."""
    tokens: list[int] = []
    said: list[bool] = []
    position = 0
    for turn in ASSISTANT_TURN.finditer(text):
        before = tokenizer.encode(text[position : turn.start(1)], add_special_tokens=False).ids
        answer = tokenizer.encode(turn[1], add_special_tokens=False).ids
        tokens += before + answer
        said += [False] * len(before) + [True] * len(answer)
        position = turn.end(1)
    return tokens, said
