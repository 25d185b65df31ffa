"""Constrained outputs of the starter model, drawn at temperature 1: each parses and satisfies its schema.

`THRONG_N_CONSTRAINED=1000 pytest tests/test_structured_outputs.py --throng PATH` makes a thousand instead of a few."""

import concurrent.futures
import json
import os
import random
import re
from enum import Enum
from typing import Literal, Union

import pydantic

N_OUTPUTS = int(os.environ.get("THRONG_N_CONSTRAINED", "24"))
N_AT_ONCE = 16


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")


class Colour(Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


class Point(Strict):
    x: int = pydantic.Field(ge=-100, le=100)
    y: int = pydantic.Field(ge=-100, le=100)
    colour: Colour
    label: Union[str, None] = pydantic.Field(max_length=20)


class Shape(Strict):
    name: str = pydantic.Field(min_length=1, max_length=20)
    points: list[Point] = pydantic.Field(min_length=1, max_length=3)
    closed: bool


class Cat(Strict):
    kind: Literal["cat"]
    lives: int = pydantic.Field(ge=1, le=9)


class Dog(Strict):
    kind: Literal["dog"]
    tricks: list[str] = pydantic.Field(max_length=2)


class Owner(Strict):
    pet: Union[Cat, Dog] = pydantic.Field(discriminator="kind")
    since: str = pydantic.Field(pattern="^(19|20)[0-9]{2}-(0[1-9]|1[0-2])$")


def check(model):
    return lambda text: model.model_validate_json(text)


def is_object(text):
    assert isinstance(json.loads(text), dict)


def matches(pattern):
    def check(text):
        assert re.fullmatch(pattern, text), text

    return check


CASES = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "shape", "schema": Shape.model_json_schema()}}}, check(Shape)),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "owner", "schema": Owner.model_json_schema()}}}, check(Owner)),
    ({"response_format": {"type": "json_object"}}, is_object),
    ({"structured_outputs": {"regex": "[a-z]{2,12}@[a-z]{2,12}[.](com|org)"}}, matches("[a-z]{2,12}@[a-z]{2,12}[.](com|org)")),
    ({"grammar": 'root ::= term (" + " term){0,4}\nterm ::= [0-9]{1,3} | "(" root ")"'}, matches("[0-9+() ]+")),
]


def test_constrained_outputs_parse(server):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    client = server.client()

    def one(n):
        fields, is_right = CASES[n % len(CASES)]
        answer = client.chat.completions.create(
            model="throng-starter",
            messages=[{"role": "user", "content": f"Make up number {n}."}],
            temperature=1,
            seed=seed + n,
            max_tokens=1000,
            extra_body=fields,
        )
        choice = answer.choices[0]
        if choice.finish_reason == "stop":
            is_right(choice.message.content)
        return choice.finish_reason

    with concurrent.futures.ThreadPoolExecutor(N_AT_ONCE) as pool:
        reasons = list(pool.map(one, range(N_OUTPUTS)))
    print(f"{len(reasons)} outputs: {reasons.count('stop')} complete, {reasons.count('length')} cut by max_tokens")
    # A text without a bound may be cut by `max_tokens`; nothing else may end an output.
    assert set(reasons) <= {"stop", "length"}
    assert reasons.count("stop") >= 0.5 * len(reasons)
