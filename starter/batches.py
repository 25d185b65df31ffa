"""Endless training batches: conversations of similar length side by side, always the same number of tokens."""

import random
from collections.abc import Iterator

import torch
from tokenizers import Tokenizer
from torch import Tensor

from corpus.generate import conversations
from tokenizer import END_OF_TEXT, chat_renderer, encode_chat

BATCH_TOKENS = 3072
LENGTHS = [48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
"""Row lengths. Each divides `BATCH_TOKENS`, so that every batch has one flat shape."""

CHUNK = 12_000
"""Conversations that are drawn and sorted together."""


def encoded(tokenizer: Tokenizer, seed: int, count: int, held_out: bool = False) -> list[tuple[list[int], list[bool]]]:
    """Conversations as tokens and marks, those too long for the longest row left out."""
    render = chat_renderer()
    texts = (render(messages, tools) for messages, tools in conversations(seed, count, held_out))
    pairs = (encode_chat(tokenizer, text) for text in texts)
    return [(tokens, said) for tokens, said in pairs if len(tokens) <= LENGTHS[-1]]


def rows_of(pairs: list[tuple[list[int], list[bool]]], length: int, padding: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs [n_rows, length], and of the tokens to predict the flat index of the position before each and the token."""
    inputs = torch.full((len(pairs), length), padding)
    positions: list[int] = []
    targets: list[int] = []
    for row, (tokens, said) in enumerate(pairs):
        inputs[row, : len(tokens)] = torch.tensor(tokens)
        for index in range(1, len(tokens)):
            if said[index]:
                positions.append(row * length + index - 1)
                targets.append(tokens[index])
    return inputs, torch.tensor(positions), torch.tensor(targets)


def batches(tokenizer: Tokenizer, seed: int, skip: int = 0) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The batches of a run from the `skip`-th on. A chunk's leftovers wait for the next one."""
    padding = tokenizer.token_to_id(END_OF_TEXT)
    waiting: dict[int, list] = {length: [] for length in LENGTHS}
    chunk = 0
    while True:
        for pair in encoded(tokenizer, seed * 1_000_000 + chunk, CHUNK):
            waiting[next(length for length in LENGTHS if len(pair[0]) <= length)].append(pair)
        ready = []
        for length, pairs in waiting.items():
            n_rows = BATCH_TOKENS // length
            while len(pairs) >= n_rows:
                ready.append((pairs[:n_rows], length))
                del pairs[:n_rows]
        random.Random(f"{seed}/{chunk}").shuffle(ready)
        for pairs, length in ready[skip:]:
            yield rows_of(pairs, length, padding)
        skip = max(0, skip - len(ready))
        chunk += 1
