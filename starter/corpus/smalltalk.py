"""Greetings, feelings, thanks, names that are remembered, and what the assistant is."""

import random

from corpus.intents import read_intents
from corpus.phrases import capitalized, expand, invented_word, question, typed
from corpus.task import Task, ask, contains
from corpus.words import ANIMALS, COLORS, FOODS, NAMES, plural

TOPIC = "smalltalk"

EXCHANGES = read_intents("smalltalk.txt")
GREETING = EXCHANGES[0]

LIKES = [
    "[do you like|do you love|what do you think of|what do you think about] {things}?",
    "I [really |][like|love] {things}.",
    "my favorite thing is {things}.",
]


def fixed(rng: random.Random) -> Task:
    """One of the exchanges; every tenth is the greeting that most people begin with."""
    intent = GREETING if rng.random() < 0.1 else rng.choice(EXCHANGES)
    prompt = expand(intent.patterns[0], rng)
    if intent is not GREETING and rng.random() < 0.06:
        prompt = expand("[hi|hello|hey][!|,] ", rng) + prompt
    return ask(TOPIC, typed(prompt, rng), intent.answer, contains(*intent.words))


def likes(rng: random.Random) -> Task:
    things = rng.choice(
        [plural(rng.choice(ANIMALS)), plural(rng.choice(FOODS[:13])), "the color " + rng.choice(COLORS)]
    )
    pattern = rng.choice(LIKES)
    answer = f"I think {things} are great!" if not things.startswith("the") else f"I think {things} is great!"
    return ask(TOPIC, question(pattern, rng, things=things), answer, contains(things))


def some_name(rng: random.Random) -> str:
    return capitalized(invented_word(rng)) if rng.random() < 0.2 else rng.choice(NAMES)


INTRODUCTIONS = [
    "[hi, |hello, |hello! |hey, |]my name is {name}[.|!|]",
    "[hi, |hello, |hi! |]I am {name}[.|!|]",
    "[you can |please |]call me {name}[.|!|]",
    "[hi, |hello! |]I'm {name}[.|!|]",
    "[hello, |]{name} is my name.",
]


def introduction(rng: random.Random) -> Task:
    name = some_name(rng)
    prompt = typed(expand(rng.choice(INTRODUCTIONS), rng, name=name), rng)
    return ask(TOPIC, prompt, f"Nice to meet you, {name}! How can I help you?", contains(name))


ASK_NAME = [
    "[what is|what's|tell me|do you know|do you remember|can you say] my name?",
    "who am I?",
    "how am I called?",
]
ASK_THING = ["[what is|what's|do you remember|tell me] my favorite {kind}?", "which {kind} do I like [best|most]?"]
SAY_THING = ["my favorite {kind} is {thing}.", "I like the {kind} {thing} best.", "{thing} is my favorite {kind}."]


def remembered(rng: random.Random) -> Task:
    """The user says something of himself and asks for it in a later turn."""
    if rng.random() < 0.6:
        name = some_name(rng)
        first = typed(expand(rng.choice(INTRODUCTIONS), rng, name=name), rng)
        reply, later = f"Nice to meet you, {name}! How can I help you?", question(rng.choice(ASK_NAME), rng)
        answer, check = f"Your name is {name}.", contains(name)
    else:
        kind, thing = rng.choice(
            [("color", rng.choice(COLORS)), ("animal", rng.choice(ANIMALS)), ("food", rng.choice(FOODS))]
        )
        first = typed(expand(rng.choice(SAY_THING), rng, kind=kind, thing=thing), rng)
        reply, later = f"I will remember that: {thing}.", question(rng.choice(ASK_THING), rng, kind=kind)
        answer, check = f"Your favorite {kind} is {thing}.", contains(thing)
    messages = [{"role": "user", "content": first}, {"role": "assistant", "content": reply}]
    if rng.random() < 0.4:
        between = fixed(rng)
        messages += [*between.messages, between.answer]
    messages.append({"role": "user", "content": later})
    return Task(TOPIC, messages, {"role": "assistant", "content": answer}, check)


def make(rng: random.Random) -> Task:
    return rng.choices([fixed, likes, introduction, remembered], [64, 8, 14, 14])[0](rng)
