"""Patterns that stand for many phrases: `[a|b|]` is one of its parts, `{name}` is filled in."""

import random
import re

GROUP = re.compile(r"\[([^\[\]]*)\]")
ARTICLE = re.compile(r"\b([aA]) (?=[aeiou])")

SYLLABLES = (
    "ba be bi bo bu da de di do du fa fe fi fo ga go ka ke ki ko la le li lo lu ma me mi mo mu na ne ni no pa pe pi "
    "po ra re ri ro ru sa se si so ta te ti to tu va ve vi vo wa wi za zo"
).split()
ENDINGS = ["", "", "", "n", "r", "l", "s", "m", "x", "nd", "rt", "sk"]


def expand(pattern: str, rng: random.Random, **values: object) -> str:
    """One phrase of a pattern, innermost groups first, with the values filled in."""
    while GROUP.search(pattern):
        pattern = GROUP.sub(lambda match: rng.choice(match[1].split("|")), pattern)
    return ARTICLE.sub(r"\1n ", pattern.format(**values) if values else pattern)


def capitalized(text: str) -> str:
    """First letter upper case, the rest as it is."""
    return text[:1].upper() + text[1:]


def typed(text: str, rng: random.Random) -> str:
    """A prompt as people type it: mostly a proper sentence, at times without the capital or the final mark."""
    text = capitalized(text)
    style = rng.random()
    if style < 0.08:
        text = text[:1].lower() + text[1:]
    if style < 0.04 or style > 0.92:
        text = text.rstrip("?.!")
    return text


def question(pattern: str, rng: random.Random, **values: object) -> str:
    """A pattern said as a prompt, at times with a few polite words around it."""
    text = expand(pattern, rng, **values)
    opening = rng.random()
    if opening < 0.06:
        text = rng.choice(["Please tell me: ", "Tell me: ", "Quick question: ", "I wonder: ", "One more: "]) + text
    elif opening < 0.10:
        text = rng.choice(["Hi! ", "Hello! ", "Hey, ", "OK, ", "And now: "]) + text
    return typed(text, rng)


def invented_word(rng: random.Random) -> str:
    """A word that does not exist, so that copying is learnt and not only the words of the tables."""
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.choice([1, 2, 2, 3]))) + rng.choice(ENDINGS)


def joined(items: list[str]) -> str:
    """a, b and c."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]
