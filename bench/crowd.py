#!/usr/bin/env python3
"""How a crowd fares on one server: one user, then many at once, then many while a long prompt arrives.

    bench/crowd.py --throng target/release/throng --model qwen3-0.6b-q8_0.gguf --users 10

Prints the tokens/s of one user and of all users together, their ratio, the usual gap between two tokens of a
stream and the longest one after a prompt of `--intruder-tokens` was sent. Prompts are random token ids, all
different; every stream runs to `--generate-tokens`. Needs only Python's standard library.
"""

import argparse
import http.client
import json
import random
import re
import statistics
import subprocess
import threading
import time
from pathlib import Path


class Stream:
    """One streamed completion; `times` holds the arrival of each token."""

    def __init__(self, address, model, prompt, n_tokens):
        self.body = json.dumps(
            {
                "model": model,
                "prompt": prompt,
                "max_tokens": n_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "return_token_ids": True,
            }
        )
        self.address, self.times, self.sent = address, [], None

    def run(self):
        connection = http.client.HTTPConnection(*self.address, timeout=600)
        self.sent = time.perf_counter()
        connection.request("POST", "/v1/completions", self.body, {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(answer.read().decode())
        for line in answer:
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:])["choices"]
                self.times += [time.perf_counter()] * sum(len(choice.get("token_ids") or []) for choice in choices)
        connection.close()

    def gaps(self):
        return [after - before for before, after in zip(self.times, self.times[1:])]


def together(streams, intruder=None, intrude_at=0):
    """Runs streams at once, and the intruder when each has `intrude_at` tokens; gives tokens/s while all decode."""
    threads = [threading.Thread(target=stream.run) for stream in streams]
    for thread in threads:
        thread.start()
    if intruder is not None:
        while min(len(stream.times) for stream in streams) < intrude_at and any(t.is_alive() for t in threads):
            time.sleep(0.005)
        intruder.run()
    for thread in threads:
        thread.join()
    start, end = max(s.times[0] for s in streams), min(s.times[-1] for s in streams)
    n_tokens = sum(1 for stream in streams for at in stream.times if start < at <= end)
    return n_tokens / (end - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--throng", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--users", type=int, default=10)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--generate-tokens", type=int, default=128)
    parser.add_argument("--intruder-tokens", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    settings = parser.parse_args()
    draw = random.Random(settings.seed)
    server = subprocess.Popen(
        [settings.throng, "serve", settings.model, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        port = next(int(m.group(1)) for line in server.stdout if (m := re.search(r"http://127\.0\.0\.1:(\d+)", line)))
        threading.Thread(target=server.stdout.read, daemon=True).start()
        address, name = ("127.0.0.1", port), Path(settings.model).stem

        def stream(n_prompt, n_tokens):
            prompt = [draw.randrange(1000, 50000) for _ in range(n_prompt)]
            return Stream(address, name, prompt, n_tokens)

        def crowd(n, n_tokens):
            return [stream(settings.prompt_tokens, n_tokens) for _ in range(n)]

        together(crowd(1, 8))
        one = together(crowd(1, settings.generate_tokens))
        many = together(crowd(settings.users, settings.generate_tokens))
        streams = crowd(settings.users, 2 * settings.generate_tokens)
        intruder = stream(settings.intruder_tokens, 1)
        together(streams, intruder, settings.generate_tokens // 2)
        inside = lambda at: intruder.sent <= at <= intruder.times[0]
        usual, disturbed = [], []
        for each in streams:
            for at, gap in zip(each.times[1:], each.gaps()):
                (disturbed if inside(at) else usual).append(gap)
        result = {
            "one_user_tokens_per_s": one,
            "all_users_tokens_per_s": many,
            "ratio": many / one,
            "usual_gap_ms": statistics.median(usual) * 1e3,
            "usual_gap_p99_ms": statistics.quantiles(usual, n=100)[98] * 1e3,
            "worst_gap_beside_the_long_prompt_ms": max(disturbed) * 1e3,
            "worst_gap_over_usual": max(disturbed) / statistics.median(usual),
            "long_prompt_first_token_s": intruder.times[0] - intruder.sent,
        }
        print(json.dumps({key: round(value, 2) for key, value in result.items()}, indent=2))
    finally:
        server.terminate()


if __name__ == "__main__":
    main()
