"""Arithmetic with small numbers: sums to 24, differences within 15, the tables to 10, and stories around them."""

import random

from corpus.phrases import question
from corpus.task import Task, ask
from corpus.words import COUNT_WORDS, FOODS, NAMES, OBJECTS, plural

TOPIC = "arithmetic"

ASK = {
    "+": [
        "[what is|what's|calculate|compute|work out|how much is] {a} + {b}?",
        "{a} + {b}",
        "{a} + {b} = ?",
        "{a}+{b}",
        "[what is|what's|how much is|calculate] {a} plus {b}?",
        "add {a} and {b}.",
        "[what is|find|give me] the sum of {a} and {b}?",
        "[can you|could you please|please] add {a} and {b}?",
        "[what do I get|what comes out] if I add {a} and {b}?",
    ],
    "-": [
        "[what is|what's|calculate|compute|work out|how much is] {a} - {b}?",
        "{a} - {b}",
        "{a} - {b} = ?",
        "{a}-{b}",
        "[what is|what's|how much is|calculate] {a} minus {b}?",
        "subtract {b} from {a}.",
        "[take|take away] {b} from {a}.",
        "[what is|find|give me] the difference between {a} and {b}?",
        "[what is left|what remains] if I take {b} from {a}?",
    ],
    "x": [
        "[what is|what's|calculate|compute|work out|how much is] {a} x {b}?",
        "{a} x {b}",
        "{a} * {b} = ?",
        "{a}*{b}",
        "[what is|what's|how much is|calculate] {a} times {b}?",
        "multiply {a} by {b}.",
        "[what is|find|give me] the product of {a} and {b}?",
        "[can you|could you please|please] multiply {a} by {b}?",
    ],
    "/": [
        "[what is|what's|calculate|compute|work out|how much is] {a} / {b}?",
        "{a} / {b}",
        "{a} / {b} = ?",
        "[what is|what's|how much is|calculate] {a} divided by {b}?",
        "divide {a} by {b}.",
        "[can you|could you please|please] divide {a} by {b}?",
    ],
}

MORE = [
    "{name} has {a} {things} and [gets|finds|buys] {b} more. How many {things} does {name} have [now|]?",
    "There are {a} {things} on the table. {name} adds {b} more. How many {things} are there [now|]?",
    "{name} picks {a} {things} in the morning and {b} in the evening. How many {things} is that?",
]
FEWER = [
    "{name} has {a} {things} and [gives away|loses|sells] {b}. How many {things} [are left|does {name} have now]?",
    "There are {a} {things} in the box. {name} takes {b}. How many {things} are left?",
    "{name} had {a} {things} and ate {b}. How many {things} are left?",
]
GROUPS = [
    "{name} has {a} boxes with {b} {things} in each. How many {things} is that?",
    "There are {a} bags and {b} {things} in each bag. How many {things} are there?",
]


def operands(sign: str, rng: random.Random) -> tuple[int, int, int]:
    """Two numbers and the result."""
    if sign == "+":
        a, b = rng.randint(0, 12), rng.randint(0, 12)
        return a, b, a + b
    if sign == "-":
        a = rng.randint(0, 15)
        b = rng.randint(0, a)
        return a, b, a - b
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    if sign == "x":
        return a, b, a * b
    b = max(b, 1)
    return a * b, b, a


def plain(rng: random.Random) -> Task:
    sign = rng.choice("++--xx/")
    a, b, result = operands(sign, rng)
    shown = [str(a), str(b)]
    if max(a, b) <= 20 and rng.random() < 0.12:
        shown = [COUNT_WORDS[a], COUNT_WORDS[b]]
        pattern = rng.choice([pattern for pattern in ASK[sign] if sign not in pattern and "*" not in pattern])
    else:
        pattern = rng.choice(ASK[sign])
    prompt = question(pattern, rng, a=shown[0], b=shown[1])
    return ask(TOPIC, prompt, f"{a} {sign} {b} = {result}", {"kind": "number", "value": result})


def in_words(rng: random.Random) -> Task:
    patterns, sign = rng.choice([(MORE, "+"), (FEWER, "-"), (GROUPS, "x")])
    a, b, result = operands(sign, rng)
    things = plural(rng.choice(OBJECTS[:24] + FOODS[:14]))
    prompt = question(rng.choice(patterns), rng, a=a, b=b, things=things, name=rng.choice(NAMES))
    return ask(
        TOPIC, prompt, f"{a} {sign} {b} = {result}, so the answer is {result}.", {"kind": "number", "value": result}
    )


def compare(rng: random.Random) -> Task:
    a, b = rng.sample(range(0, 100), 2)
    bigger = rng.random() < 0.5
    word = rng.choice(["bigger", "larger", "greater", "more"] if bigger else ["smaller", "less"])
    prompt = question("[which is|which number is|what is] {word}, {a} or {b}?", rng, word=word, a=a, b=b)
    result = max(a, b) if bigger else min(a, b)
    return ask(TOPIC, prompt, str(result), {"kind": "number", "value": result})


def one_number(rng: random.Random) -> Task:
    n = rng.randint(1, 20)
    pattern, result = rng.choice(
        [
            ("[what is|what's] [double|twice] {n}?", 2 * n),
            ("double {n}.", 2 * n),
            ("[what|which number] comes after {n}?", n + 1),
            ("[what|which number] comes before {n}?", n - 1),
        ]
    )
    return ask(TOPIC, question(pattern, rng, n=n), str(result), {"kind": "number", "value": result})


def count_up(rng: random.Random) -> Task:
    start = rng.choice([1, 1, 1, 0, 2, 5, 10])
    end = start + rng.randint(2, 9)
    up = list(range(start, end + 1))
    way = rng.random()
    if start == 1 and way < 0.3:
        prompt = question("[count|please count|can you count] to {b}", rng, b=rng.choice([end, COUNT_WORDS[end]]))
    elif way < 0.75:
        prompt = question("[count|please count|can you count] from {a} to {b}", rng, a=start, b=end)
    else:
        up.reverse()
        prompt = question("[count|please count] [down|backwards] from {b} to {a}", rng, a=start, b=end)
    return ask(TOPIC, prompt, ", ".join(map(str, up)))


def make(rng: random.Random) -> Task:
    kind = rng.choices([plain, in_words, compare, one_number, count_up], [60, 20, 8, 6, 6])[0]
    return kind(rng)
