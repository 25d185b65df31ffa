"""instructor: answers as pydantic models, by tools and by structured outputs."""

import asyncio

import instructor
import openai
import pydantic
import pytest

from conftest import MODEL

# Not `Mode.JSON`: any object is right there, and the fields are the model's own knowledge.
MODES = [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA]
QUESTION = [{"role": "user", "content": "Give me a person."}]


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=150)


@pytest.fixture(params=MODES, ids=lambda mode: mode.value)
def mode(request):
    return request.param


def test_an_answer_is_the_model_s_type(base_url, mode):
    client = instructor.from_openai(openai.OpenAI(base_url=base_url, max_retries=0), mode=mode)
    person, answer = client.chat.completions.create_with_completion(
        model=MODEL, messages=QUESTION, response_model=Person, temperature=0, max_tokens=128, max_retries=0
    )
    assert isinstance(person, Person)
    assert answer.usage.completion_tokens > 0


def test_partial_answers_end_with_the_whole(base_url, mode):
    client = instructor.from_openai(openai.OpenAI(base_url=base_url, max_retries=0), mode=mode)
    settings = dict(model=MODEL, messages=QUESTION, temperature=0, max_tokens=128, max_retries=0)
    parts = list(client.chat.completions.create_partial(response_model=Person, **settings))
    whole = client.chat.completions.create(response_model=Person, **settings)
    assert parts[-1].model_dump() == whole.model_dump()


def test_the_asynchronous_client(base_url):
    client = instructor.from_openai(openai.AsyncOpenAI(base_url=base_url, max_retries=0))
    person = asyncio.run(
        client.chat.completions.create(
            model=MODEL, messages=QUESTION, response_model=Person, temperature=0, max_tokens=128, max_retries=0
        )
    )
    assert isinstance(person, Person)
