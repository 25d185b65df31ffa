#!/usr/bin/env python3
"""Scores held-out prompts of every topic against a running server, or with --local through transformers.

python3 starter/evaluate.py                                    against http://127.0.0.1:8000
python3 starter/evaluate.py --local                            the float checkpoint of the last training
python3 starter/evaluate.py --local --measure                  perplexity of the Q8_0 file, agreement of the draft
"""

import environment

environment.enter()

import argparse
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from corpus.generate import evaluation_tasks
from corpus.task import Task
from judge import is_right
from tokenizer import TURN_END, chat_renderer

HERE = Path(__file__).resolve().parent
NAME = "throng-starter"
SEED = 20
STORY_SEED = 21
MAX_TOKENS = 160
CONCURRENCY = 8
HELD_OUT_CONVERSATIONS = 200


def plain_messages(task: Task) -> list[dict]:
    """The same conversation with tools, calls and results written out, for servers that have no tools parameter yet."""
    text = chat_renderer()(task.messages, task.tools)
    turns = [turn.split("\n", 1) for turn in text.split("<|im_start|>")[1:]]
    return [{"role": role, "content": content.removesuffix(TURN_END + "\n")} for role, content in turns]


def post(url: str, body: dict) -> dict:
    request = urllib.request.Request(
        url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)
    except urllib.error.HTTPError:
        raise
    except urllib.error.URLError as error:
        raise SystemExit(f"no server answers at {url}: {error.reason}") from error


class Server:
    """An OpenAI-compatible server at `url`."""

    def __init__(self, url: str, model: str):
        self.url, self.model = url.rstrip("/").removesuffix("/v1"), model

    def answer(self, task: Task, temperature: float, seed: int) -> dict:
        body = {"model": self.model, "temperature": temperature, "max_tokens": MAX_TOKENS, "seed": seed}
        if task.tools:
            try:
                choice = post(self.url, {**body, "messages": task.messages, "tools": task.tools})["choices"][0]
                return {**choice["message"], "finish_reason": choice["finish_reason"]}
            except urllib.error.HTTPError as error:
                if error.code != 400:
                    raise
        choice = post(self.url, {**body, "messages": plain_messages(task)})["choices"][0]
        return {**choice["message"], "finish_reason": choice["finish_reason"]}

    def answers(self, tasks: list[Task], temperature: float, max_tokens: int) -> list[dict]:
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            return list(pool.map(lambda pair: self.answer(pair[1], temperature, pair[0]), enumerate(tasks)))


def score(source, per_topic: int, show_mistakes: bool) -> None:
    """Prints the table of the topics and the result of the sampled stories."""
    print("| topic | right | of | share |\n|---|---|---|---|")
    total = 0
    tasks_of = evaluation_tasks(SEED, per_topic)
    for topic, tasks in tasks_of.items():
        answers = source.answers(tasks, 0.0, MAX_TOKENS)
        right = [is_right(task, answer) for task, answer in zip(tasks, answers)]
        total += sum(right)
        print(f"| {topic} | {sum(right)} | {len(tasks)} | {100 * sum(right) / len(tasks):.0f} % |", flush=True)
        if show_mistakes:
            for task, answer, good in zip(tasks, answers, right):
                if not good:
                    print("   ", json.dumps([task.messages[-1]["content"], answer, task.check]))
    n_tasks = per_topic * len(tasks_of)
    print(f"| all | {total} | {n_tasks} | {100 * total / n_tasks:.1f} % |")
    stories = evaluation_tasks(STORY_SEED, 20)["stories"]
    answers = source.answers(stories, 0.8, MAX_TOKENS)
    good = sum(is_right(task, answer) for task, answer in zip(stories, answers))
    print(
        f"stories at temperature 0.8: {good} of {len(stories)} end, mention what was asked for and repeat no sentence"
    )


def measure() -> None:
    """Prints the perplexity with and without quantization, and how often the draft model agrees."""
    from tokenizers import Tokenizer

    from batches import encoded
    from local_model import LocalModel, agreement, perplexity

    build, models = HERE / "build", HERE / "models"
    pairs = encoded(Tokenizer.from_file(str(build / "tokenizer.json")), SEED, HELD_OUT_CONVERSATIONS, held_out=True)
    exact, quantized = LocalModel(build / NAME), LocalModel(build / NAME, models / f"{NAME}.gguf")
    ours, theirs = perplexity(exact, pairs), perplexity(quantized, pairs)
    print(f"perplexity on held-out text: float32 {ours:.4f}, Q8_0 {theirs:.4f}, {100 * (theirs / ours - 1):+.2f} %")
    if (build / f"{NAME}-draft").exists():
        share = agreement(exact, LocalModel(build / f"{NAME}-draft"), pairs)
        print(f"the draft model agrees with the starter at {100 * share:.1f} % of held-out tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default=NAME)
    parser.add_argument("--local", action="store_true", help="answer through transformers instead of a server")
    parser.add_argument("--measure", action="store_true", help="perplexity and draft agreement instead of the table")
    parser.add_argument("--per-topic", type=int, default=60)
    parser.add_argument("--mistakes", action="store_true", help="show the wrong answers")
    arguments = parser.parse_args()
    if arguments.measure:
        measure()
    elif arguments.local:
        from local_model import LocalModel

        score(LocalModel(HERE / "build" / arguments.model), arguments.per_topic, arguments.mistakes)
    else:
        score(Server(arguments.url, arguments.model), arguments.per_topic, arguments.mistakes)


if __name__ == "__main__":
    main()
