#!/usr/bin/env python3
"""Measures one server with one user, then many at once, then many while a long prompt arrives.

    bench/crowd.py --throng target/release/throng --model qwen3-0.6b-q8_0.gguf --users 10

Prints the tokens/s of one user and of all users together, their ratio, the usual gap between two tokens of a
stream and the longest one after a prompt of `--intruder-tokens` was sent. Prompts are random token ids, all
different; every stream runs to `--generate-tokens`. Needs only Python's standard library.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path

import load
from comparison.servers import Server


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--throng", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--users", type=int, default=10)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--generate-tokens", type=int, default=128)
    parser.add_argument("--intruder-tokens", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def tokens_per_s(port, streams):
    """Tokens/s of all streams together, while all of them decode."""
    asyncio.run(load.all_at_once(port, streams))
    start, end = max(stream.times[0] for stream in streams), min(stream.times[-1] for stream in streams)
    return sum(start < at <= end for stream in streams for at in stream.times) / (end - start)


def measure(settings, port):
    prompts, name = load.Prompts(settings.seed), Path(settings.model).stem

    def crowd(n_users, n_tokens):
        return [load.Stream(name, prompts(settings.prompt_tokens), n_tokens) for _ in range(n_users)]

    tokens_per_s(port, crowd(1, 8))
    one = tokens_per_s(port, crowd(1, settings.generate_tokens))
    many = tokens_per_s(port, crowd(settings.users, settings.generate_tokens))
    streams = crowd(settings.users, 2 * settings.generate_tokens)
    intruder = load.Stream(name, prompts(settings.intruder_tokens), 1)
    asyncio.run(load.with_an_intruder(port, streams, intruder, settings.generate_tokens // 2))
    beside, usual = load.gaps_around(streams, intruder)
    return {
        "one_user_tokens_per_s": one,
        "all_users_tokens_per_s": many,
        "ratio": many / one,
        "usual_gap_ms": statistics.median(usual) * 1e3,
        "usual_gap_p99_ms": statistics.quantiles(usual, n=100)[98] * 1e3,
        "worst_gap_beside_the_long_prompt_ms": max(beside) * 1e3,
        "worst_gap_over_usual": max(beside) / statistics.median(usual),
        "long_prompt_first_token_s": intruder.times[0] - intruder.sent,
    }


def main():
    settings = arguments()
    with tempfile.TemporaryDirectory() as folder:
        # The text of random weights repeats itself: with speculation the figures would not be those of other models.
        command = [settings.throng, "serve", settings.model, "--no-speculation", "--port"]
        with Server(lambda port: [*command, port], Path(folder) / "serve.log") as server:
            result = measure(settings, server.port)
    print(json.dumps({key: round(value, 2) for key, value in result.items()}, indent=2))


if __name__ == "__main__":
    main()
