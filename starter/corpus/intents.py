"""Questions with one answer each, kept as plain text so that they are easy to read and to add to.

? a pattern of the question, one or several
= the answer
! what another answer has to contain | all of it
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Intent:
    patterns: list[str]
    answer: str
    words: list[str]


def read_intents(name: str, shorthands: dict[str, str] | None = None) -> list[Intent]:
    """Reads a file of this folder; a shorthand stands for a longer piece of a pattern."""
    text = (Path(__file__).parent / name).read_text()
    for shorthand, meaning in (shorthands or {}).items():
        text = text.replace(shorthand, meaning)
    return [intent_of(entry.splitlines()) for entry in text.strip().split("\n\n")]


def intent_of(lines: list[str]) -> Intent:
    marked = [(line[0], line[2:]) for line in lines]
    patterns = [text for mark, text in marked if mark == "?"]
    (answer,) = [text for mark, text in marked if mark == "="]
    (words,) = [text for mark, text in marked if mark == "!"]
    return Intent(patterns, answer, words.split(" | "))
