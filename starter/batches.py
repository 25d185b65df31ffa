"""Endless training batches of conversations of similar length, always with the same number of tokens.

The text can be generated in other processes ahead of time, so that a fast device does not wait for it; the batches
do not depend on the number of processes. Does not know models and devices.
"""

import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import count, islice
from multiprocessing import get_context

import torch
from tokenizers import Tokenizer
from torch import Tensor

from corpus.generate import conversations
from tokenizer import END_OF_TEXT, chat_renderer, encode_chat

LENGTHS = [48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
"""Row lengths. Each divides 3,072, and the tokens of a batch are a multiple of that: one flat shape for all."""

CHUNK = 12_000
"""Conversations that are drawn and sorted together."""

WAITING_BATCHES = 16


def encoded(tokenizer: Tokenizer, seed: int, count: int, held_out: bool = False) -> list[tuple[list[int], list[bool]]]:
    """Conversations as tokens and marks, without those longer than the longest row."""
    render = chat_renderer()
    texts = (render(messages, tools) for messages, tools in conversations(seed, count, held_out))
    pairs = (encode_chat(tokenizer, text) for text in texts)
    return [(tokens, said) for tokens, said in pairs if len(tokens) <= LENGTHS[-1]]


def rows_of(pairs: list[tuple[list[int], list[bool]]], length: int, padding: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs [n_rows, length], and for each token to predict the flat index of the position before it and the token."""
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


def chunks(tokenizer: Tokenizer, seed: int, n_workers: int) -> Iterator[list[tuple[list[int], list[bool]]]]:
    """The chunks of a run in order, generated ahead by `n_workers` processes, or by this one on demand."""
    seeds = (seed * 1_000_000 + chunk for chunk in count())
    if n_workers == 0:
        yield from (encoded(tokenizer, seed, CHUNK) for seed in seeds)
    pool = ProcessPoolExecutor(n_workers, get_context("spawn"))
    try:
        waiting = deque(pool.submit(encoded, tokenizer, seed, CHUNK) for seed in islice(seeds, n_workers))
        while True:
            waiting.append(pool.submit(encoded, tokenizer, next(seeds), CHUNK))
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def batches(
    tokenizer: Tokenizer, seed: int, batch_tokens: int, skip: int = 0, n_workers: int = 0
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The batches of a run from the `skip`-th on. Leftovers of a chunk are used with the next one."""
    padding = tokenizer.token_to_id(END_OF_TEXT)
    waiting: dict[int, list] = {length: [] for length in LENGTHS}
    for chunk, drawn in enumerate(chunks(tokenizer, seed, n_workers)):
        for pair in drawn:
            waiting[next(length for length in LENGTHS if len(pair[0]) <= length)].append(pair)
        ready = []
        for length, pairs in waiting.items():
            n_rows = batch_tokens // length
            while len(pairs) >= n_rows:
                ready.append((pairs[:n_rows], length))
                del pairs[:n_rows]
        random.Random(f"{seed}/{chunk}").shuffle(ready)
        for pairs, length in ready[skip:]:
            yield rows_of(pairs, length, padding)
        skip = max(0, skip - len(ready))


def ahead(source: Iterator) -> Iterator:
    """The same items, made by a thread while the caller works; the thread is at most `WAITING_BATCHES` items ahead."""
    pool = ThreadPoolExecutor(1)
    try:
        waiting = deque(pool.submit(next, source) for _ in range(WAITING_BATCHES))
        while True:
            yield waiting.popleft().result()
            waiting.append(pool.submit(next, source))
    finally:
        pool.shutdown(cancel_futures=True)
        source.close()
