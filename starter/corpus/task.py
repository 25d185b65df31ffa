"""One question with its answer and with the way to judge another answer to it, and the rule that keeps some
questions out of the training text."""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

HELD_OUT_SHARE = 16
"""One prompt in this many is kept for the evaluation."""

ALWAYS_TAUGHT_WORDS = 3
"""Prompts of so few words are never held out, unless they are sums: otherwise the model would never see "sure"."""


@dataclass(frozen=True)
class Task:
    """Messages that end with a user or tool turn, the assistant message that follows, and a check.

    `check` is one of
      {"kind": "exact", "text": ...}                 the answer, letter for letter
      {"kind": "contains", "all": [...]}             every string occurs, whatever the case
      {"kind": "any", "of": [...]}                   one of the strings occurs, whatever the case
      {"kind": "number", "value": ...}               the last number of the answer
      {"kind": "json", "value": {...}}               the answer parses to this value
      {"kind": "tool_call", "name": ..., "arguments": {...}}
      {"kind": "story", "mentions": [...]}           mentioned, ended, and no sentence twice
    """

    topic: str
    messages: list[dict]
    answer: dict
    check: dict
    tools: list[dict] = field(default_factory=list)

    def prompts(self) -> list[str]:
        """What the user says; capitals and the final mark make no difference."""
        return [normalized(message["content"]) for message in self.messages if message["role"] == "user"]

    def is_held_out(self) -> bool:
        """Whether the question itself, the last thing the user says, is kept for the evaluation."""
        return is_held_out(self.prompts()[-1])

    def is_trainable(self) -> bool:
        """Whether nothing that the user says is kept for the evaluation."""
        return not any(map(is_held_out, self.prompts()))


def normalized(prompt: str) -> str:
    return prompt.lower().rstrip("?.! ")


def is_held_out(prompt: str) -> bool:
    """The rule, by the digest of a normalized prompt."""
    if len(prompt.split()) <= ALWAYS_TAUGHT_WORDS and not any(map(str.isdigit, prompt)):
        return False
    return hashlib.sha256(prompt.encode()).digest()[0] % HELD_OUT_SHARE == 0


def ask(topic: str, prompt: str, answer: str, check: dict | None = None) -> Task:
    """A question in one turn; without a check the answer has to match exactly."""
    check = check or {"kind": "exact", "text": answer}
    return Task(topic, [{"role": "user", "content": prompt}], {"role": "assistant", "content": answer}, check)


def contains(*strings: str) -> dict:
    return {"kind": "contains", "all": list(strings)}


def any_of(*strings: str) -> dict:
    return {"kind": "any", "of": list(strings)}


def draw(make: Callable[[random.Random], Task], rng: random.Random, held_out: bool) -> Task:
    """Draws tasks until one is on the wanted side of the held-out rule."""
    while True:
        task = make(rng)
        if task.is_held_out() if held_out else task.is_trainable():
            return task
