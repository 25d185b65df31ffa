"""Mixes the topics into conversations. The same seed gives the same text, byte for byte."""

import random
from collections.abc import Iterator
from functools import partial

from corpus import about_throng, arithmetic, extraction, facts, rewriting, smalltalk, stories, tools, unknown
from corpus.task import Task, draw

TOPICS = {
    module.TOPIC: module.make
    for module in (smalltalk, about_throng, stories, arithmetic, facts, rewriting, extraction, tools, unknown)
}

WEIGHTS = {
    "smalltalk": 11,
    "throng": 11,
    "stories": 9,
    "arithmetic": 14,
    "facts": 14,
    "rewriting": 22,
    "json": 9,
    "tools": 12,
    "unknown": 6,
}
"""How often each topic is drawn: what is hard to learn comes more often."""

SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "You are throng-starter, a small assistant.",
    "Answer briefly.",
    "You are a helpful assistant. Answer in one sentence.",
    "Be kind and helpful.",
    "You are an assistant that answers questions.",
]


def conversation(rng: random.Random, held_out: bool = False) -> tuple[list[dict], list[dict]]:
    """Messages and tools of one conversation: usually one task, at times several in a row."""
    names = list(WEIGHTS)
    messages: list[dict] = []
    if rng.random() < 0.2:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    n_turns = rng.choices([1, 2, 3, 4, 6, 12], [52, 20, 12, 10, 5, 1])[0]
    topics = rng.choices(names, WEIGHTS.values(), k=n_turns)
    if topics[0] == "tools":
        return with_tools(messages, rng, held_out)
    for topic in topics:
        if topic != "tools":
            task = draw(TOPICS[topic], rng, held_out)
            messages += [*task.messages, task.answer]
    return messages, []


def with_tools(messages: list[dict], rng: random.Random, held_out: bool) -> tuple[list[dict], list[dict]]:
    """A conversation in which every request is for one of the same tools; a call without a result ends it."""
    offered: list[dict] | None = None
    for _ in range(rng.choice([1, 2, 3, 4])):
        task = draw(partial(tools.make, tools=offered), rng, held_out)
        messages += [*task.messages, task.answer]
        offered = task.tools
        if task.answer.get("tool_calls"):
            break
    return messages, offered or []


def conversations(seed: int, count: int, held_out: bool = False) -> Iterator[tuple[list[dict], list[dict]]]:
    rng = random.Random(seed)
    for _ in range(count):
        yield conversation(rng, held_out)


def evaluation_tasks(seed: int, per_topic: int) -> dict[str, list[Task]]:
    """Held-out tasks, all different, for every topic."""
    tasks: dict[str, list[Task]] = {}
    for topic, make in TOPICS.items():
        rng = random.Random(f"{seed}/{topic}")
        unique: dict[str, Task] = {}
        while len(unique) < per_topic:
            task = draw(make, rng, held_out=True)
            unique.setdefault(task.prompts()[-1], task)
        tasks[topic] = list(unique.values())
    return tasks
