"""Fields of a sentence as JSON."""

import json
import random
from dataclasses import dataclass

from corpus.phrases import capitalized, expand, invented_word, typed
from corpus.task import Task, ask
from corpus.words import ANIMALS, CITIES, COLORS, DAYS, FOODS, JOBS, MONTHS, NAMES, OBJECTS, plural

TOPIC = "json"


@dataclass(frozen=True)
class Kind:
    """Sentences with the fields that are in them."""

    fields: list[str]
    sentences: list[str]


KINDS = [
    Kind(
        ["name", "age"],
        [
            "{name} is {age} years old.",
            "{name} turned {age} [today|yesterday|last week].",
            "I am {name} and I am {age} years old.",
            "my [friend|brother|sister|cousin] {name} is {age}.",
            "{name}, {age} years old, [likes music|plays chess|goes to school].",
        ],
    ),
    Kind(
        ["name", "city"],
        [
            "{name} lives in {city}.",
            "{name} [comes|is] from {city}.",
            "my name is {name} and I live in {city}.",
            "{name} moved to {city} [last year|in spring|].",
        ],
    ),
    Kind(
        ["name", "age", "city"],
        [
            "{name} is {age} years old and lives in {city}.",
            "{name} from {city} is {age} years old.",
            "I am {name}, {age} years old, from {city}.",
            "in {city} lives {name}, who is {age}.",
        ],
    ),
    Kind(
        ["item", "price"],
        [
            "the {item} costs {price} [dollars|euros].",
            "you can buy the {item} for {price} [dollars|euros].",
            "the price of the {item} is {price} [dollars|euros].",
            "I paid {price} [dollars|euros] for the {item}.",
        ],
    ),
    Kind(
        ["item", "color"],
        [
            "the {item} is {color}.",
            "I have a {color} {item}.",
            "she bought a {color} {item}.",
            "look at the {color} {item}!",
        ],
    ),
    Kind(
        ["quantity", "item"],
        [
            "I [want|need|would like] {quantity} {items}.",
            "please [bring|buy|send] me {quantity} {items}.",
            "we ordered {quantity} {items}.",
            "there are {quantity} {items} [in the box|on the table].",
        ],
    ),
    Kind(
        ["name", "job"],
        ["{name} is a {job}.", "{name} works as a {job}.", "my [friend|aunt|uncle|neighbor] {name} is a {job}."],
    ),
    Kind(
        ["name", "job", "city"],
        ["{name} works as a {job} in {city}.", "{name} is a {job} from {city}.", "the {job} {name} lives in {city}."],
    ),
    Kind(
        ["event", "day"],
        [
            "the {event} is on {day}.",
            "we have a {event} on {day}.",
            "on {day} there is a {event}.",
            "don't forget the {event} on {day}.",
        ],
    ),
    Kind(
        ["event", "month", "date"],
        [
            "the {event} is on {month} {date}.",
            "on {month} {date} we have a {event}.",
            "the {event} starts on {month} {date}.",
        ],
    ),
    Kind(
        ["name", "pet"],
        ["{name} has a {pet}.", "the {pet} of {name} is [small|big|old].", "{name} [loves|feeds|walks] a {pet}."],
    ),
    Kind(
        ["from", "to"],
        [
            "the train goes from {from} to {to}.",
            "I [want to travel|fly|drive] from {from} to {to}.",
            "a ticket from {from} to {to}, please.",
        ],
    ),
]

REQUESTS = [
    "[extract|get|find|take] [the |]{fields} [as|in] JSON: {text}",
    "[extract|return|give me] {fields} [as JSON|as a JSON object] from [this|the text|this text]: {text}",
    "[turn this into|convert this to|write this as] JSON with {fields}: {text}",
    "JSON with {fields}: {text}",
    "{text} [Extract|Give me|Return] [the |]{fields} as JSON.",
    "{text} Write {fields} as [JSON|a JSON object].",
]

EVENTS = "party meeting concert lesson game dinner wedding picnic race exam class show".split()


def values(rng: random.Random) -> dict:
    """A value for every field there is."""
    item = rng.choice(OBJECTS + FOODS)
    start, end = rng.sample(CITIES, 2)
    name = capitalized(invented_word(rng)) if rng.random() < 0.08 else rng.choice(NAMES)
    return {
        "name": name,
        "age": rng.randint(1, 99),
        "city": rng.choice(CITIES),
        "item": item,
        "items": plural(item),
        "price": rng.randint(1, 99),
        "color": rng.choice(COLORS),
        "quantity": rng.randint(2, 20),
        "job": rng.choice(JOBS),
        "event": rng.choice(EVENTS),
        "day": rng.choice(DAYS),
        "month": rng.choice(MONTHS),
        "date": rng.randint(1, 28),
        "pet": rng.choice(ANIMALS[:14]),
        "from": start,
        "to": end,
    }


def make(rng: random.Random) -> Task:
    kind = rng.choice(KINDS)
    filled = values(rng)
    text = capitalized(expand(rng.choice(kind.sentences), rng, **filled))
    if "quantity" in kind.fields:
        filled["item"] = filled["items"]
    fields = list(kind.fields)
    if rng.random() < 0.3:
        rng.shuffle(fields)
    if rng.random() < 0.25:
        fields = [rng.choice(fields)]
    shown = ", ".join(fields[:-1]) + rng.choice([" and ", ", "]) + fields[-1] if len(fields) > 1 else fields[0]
    prompt = typed(expand(rng.choice(REQUESTS), rng, fields=shown, text=text), rng)
    value = {name: filled[name] for name in fields}
    return ask(TOPIC, prompt, json.dumps(value), {"kind": "json", "value": value})
