"""Choosing a tool and its arguments from the tools of the system turn, and using what the tool returns."""

import json
import random

from corpus import smalltalk
from corpus.phrases import capitalized, expand, invented_word, question
from corpus.task import Task, contains
from corpus.tool_catalog import TOOLS, Tool
from corpus.words import CITIES, DAYS, FOODS, NAMES, OBJECTS, PLAIN_WORDS, plural

TOPIC = "tools"

SENTENCES = (
    "I am late|dinner is ready|see you soon|call me back|happy birthday|the train is late|I am at home|good luck|"
    "come to the park|the meeting is over|bring some bread|thank you for the help|we are waiting|I miss you"
).split("|")
SONGS = "Blue Moon|Happy Day|Summer Rain|Golden Sun|My Old Home|Silver River|Night Train|Morning Light|Red Balloon|Open Sea".split(
    "|"
)
QUERIES = "red shoes|train times|bread recipes|cheap hotels|funny cats|old maps|garden tools|winter coats|chess rules|guitar lessons|bike shops|space news".split(
    "|"
)
LANGUAGES = "German French Spanish Italian Dutch Polish".split()
ROOMS = "kitchen|bathroom|bedroom|garden|office|hall|garage|cellar|living room".split("|")
BY_DESCRIPTION = {tool.description: tool for tool in TOOLS}
EVENTS = "party meeting concert lesson game dinner picnic exam class show".split()


def values(tool: Tool, rng: random.Random) -> dict:
    """A value for every parameter of the tool, by its role."""
    known = {
        "city": rng.choice(CITIES),
        "a": rng.randint(2, 99),
        "b": rng.randint(2, 99),
        "name": rng.choice(NAMES),
        "text": rng.choice(SENTENCES),
        "minutes": rng.randint(1, 60),
        "time": f"{rng.randint(1, 12)}:{rng.choice(['00', '15', '30', '45'])}",
        "room": rng.choice(ROOMS),
        "state": rng.choice(["on", "off"]),
        "item": rng.choice(OBJECTS + FOODS),
        "quantity": rng.randint(2, 12),
        "word": rng.choice(OBJECTS),
        "language": rng.choice(LANGUAGES),
        "song": rng.choice(SONGS),
        "event": rng.choice(EVENTS),
        "day": rng.choice(DAYS),
        "query": rng.choice(QUERIES),
    }
    if rng.random() < 0.1:
        known["city"], known["name"] = capitalized(invented_word(rng)), capitalized(invented_word(rng))
    if "quantity" in tool.parameters or tool.names[0] == "count_stock":
        known["item"] = plural(known["item"])
    return {role: known[role] for role in tool.parameters}


def result_of(tool: Tool, rng: random.Random) -> dict:
    """The tool's result: plausible, but not predictable from the question."""
    fresh = {
        "temperature": rng.randint(-5, 35),
        "condition": rng.choice(["sunny", "cloudy", "rainy", "windy", "foggy"]),
        "time": f"{rng.randint(0, 23)}:{rng.randint(10, 59)}",
        "number": rng.randint(10, 9999),
        "price": rng.randint(1, 99),
        "count": rng.randint(0, 999),
        "phone": f"{rng.randint(100, 999)}-{rng.randint(1000, 9999)}",
        "invented": invented_word(rng),
    }
    return {key: fresh.get(kind, kind) for key, kind in tool.result.items()}


def invented_or(names: list[str], rng: random.Random) -> str:
    """One of the names, or a made-up one."""
    if rng.random() < 0.8:
        return rng.choice(names)
    return rng.choice([f"{rng.choice(PLAIN_WORDS)}_{rng.choice(OBJECTS)}", invented_word(rng)])


def described(tool: Tool, rng: random.Random) -> dict:
    """The tool as an OpenAI function under one of its names, its parameters under one of theirs, in the same order.

    One name in five is made up, so that the model must copy names from the system turn instead of recalling them.
    """
    properties = {invented_or(names, rng): {"type": kind} for names, kind in tool.parameters.values()}
    function = {
        "name": invented_or(tool.names, rng),
        "description": tool.description,
        "parameters": {"type": "object", "properties": properties, "required": list(properties)},
    }
    return {"type": "function", "function": function}


def make(rng: random.Random, tools: list[dict] | None = None) -> Task:
    """A request that one of the tools answers: to be called, or called and to be reported. At times only small talk."""
    if tools is None:
        tools = [described(tool, rng) for tool in rng.sample(TOOLS, rng.choice([1, 2, 2, 3]))]
    if rng.random() < 0.1:
        chat = smalltalk.fixed(rng)
        return Task(TOPIC, chat.messages, chat.answer, chat.check, tools)
    function = rng.choice(tools)["function"]
    tool = BY_DESCRIPTION[function["description"]]
    filled = values(tool, rng)
    arguments = dict(zip(function["parameters"]["properties"], filled.values()))
    user = {"role": "user", "content": question(rng.choice(tool.requests), rng, **filled)}
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call_0",
                "type": "function",
                "function": {"name": function["name"], "arguments": json.dumps(arguments)},
            }
        ],
    }
    if rng.random() < 0.4:
        return Task(TOPIC, [user], call, {"kind": "tool_call", "name": function["name"], "arguments": arguments}, tools)
    result = result_of(tool, rng)
    answer = capitalized(expand(tool.answer, rng, **{**filled, **result}))
    said = [str(result[key]) for key in tool.result if f"{{{key}}}" in tool.answer]
    check = (
        contains(*said)
        if said
        else contains(*(str(value) for role, value in filled.items() if f"{{{role}}}" in tool.answer))
    )
    messages = [user, call, {"role": "tool", "tool_call_id": "call_0", "content": json.dumps(result)}]
    return Task(TOPIC, messages, {"role": "assistant", "content": answer}, check, tools)
