"""Everyday facts from the tables, one at a time or asked the other way round."""

import random

from corpus.fact_tables import BABIES, CAPITALS, TABLES
from corpus.phrases import capitalized, expand, question
from corpus.task import Task, ask, contains

TOPIC = "facts"

WHOLE_LISTS = [
    (
        "[what are|name|list|tell me|say] the days of the week?",
        "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.",
    ),
    ("[what are|name|list|tell me] the [four |]seasons [of the year|]?", "Spring, summer, autumn and winter."),
    (
        "[what are|name|list|tell me] the colors of [the|a] rainbow?",
        "Red, orange, yellow, green, blue, indigo and violet.",
    ),
    ("[what are|name|list|tell me] the [five |]senses?", "Sight, hearing, smell, taste and touch."),
    ("[what are|name|list|tell me] the [four |]directions [on a map|]?", "North, east, south and west."),
    (
        "[what are|name|list|tell me] the months [of the year|in a year]?",
        "January, February, March, April, May, June, July, August, September, October, November and December.",
    ),
]

WHICH_COUNTRY = [
    "{x} is the capital of [which|what] country?",
    "[which|what] country has the capital {x}?",
    "[of which|of what] country is {x} the capital?",
    "in [which|what] country is {x}?",
]
WHOSE_BABY = [
    "a {x} is the baby of [which|what] animal?",
    "[which|what] animal has a {x} as a baby?",
    "what does a {x} grow into?",
]


def from_table(rng: random.Random) -> Task:
    table = rng.choices(TABLES, [len(table.facts) + 8 for table in TABLES])[0]
    x, y = rng.choice(list(table.facts.items()))
    prompt = question(rng.choice(table.questions), rng, x=x)
    return ask(TOPIC, prompt, capitalized(expand(table.answer, rng, x=x, y=y)), contains(y))


def turned_round(rng: random.Random) -> Task:
    if rng.random() < 0.7:
        country, city = rng.choice(list(CAPITALS.items()))
        return ask(
            TOPIC,
            question(rng.choice(WHICH_COUNTRY), rng, x=city),
            f"{city} is the capital of {country}.",
            contains(country),
        )
    parent, baby = rng.choice([(parent, baby) for parent, baby in BABIES.items() if baby != "cub"])
    return ask(
        TOPIC,
        question(rng.choice(WHOSE_BABY), rng, x=baby),
        expand("A {baby} is a baby {parent}.", rng, baby=baby, parent=parent),
        contains(parent),
    )


def whole_list(rng: random.Random) -> Task:
    pattern, answer = rng.choice(WHOLE_LISTS)
    return ask(TOPIC, question(pattern, rng), answer)


def make(rng: random.Random) -> Task:
    return rng.choices([from_table, turned_round, whole_list], [84, 12, 4])[0](rng)
