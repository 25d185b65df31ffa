"""pydantic-ai: agents with tools, output types and streams."""

import asyncio

import pydantic
import pytest
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.messages import ToolCallPart, ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from conftest import MODEL

QUESTION = "What is 17 + 25? Use the tool."


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=150)


@pytest.fixture()
def agent(base_url):
    def made(**options):
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=base_url, api_key="none"))
        return Agent(model, model_settings={"temperature": 0, "max_tokens": 128}, retries=0, **options)

    return made


def add(a: float, b: float) -> float:
    """Adds two numbers"""
    return a + b


def parts(result, kind):
    return [part for message in result.all_messages() for part in message.parts if isinstance(part, kind)]


def test_text_whole_and_streamed(agent):
    whole = agent().run_sync("Hello!")
    assert whole.output and whole.usage.output_tokens > 0

    async def stream():
        async with agent().run_stream("Hello!") as result:
            return [delta async for delta in result.stream_text(delta=True, debounce_by=None)]

    deltas = asyncio.run(stream())
    assert len(deltas) > 2 and "".join(deltas) == whole.output


def test_the_tool_loop_calls_and_answers(agent):
    result = agent(tools=[add]).run_sync(QUESTION)
    (call,) = parts(result, ToolCallPart)
    (returned,) = parts(result, ToolReturnPart)
    assert call.tool_name == "add" and returned.content == add(**call.args_as_dict())
    assert result.output


def test_the_streamed_tool_loop_is_the_whole_one(agent):
    async def stream():
        async with agent(tools=[add]).run_stream(QUESTION) as result:
            return await result.get_output()

    assert asyncio.run(stream()) == agent(tools=[add]).run_sync(QUESTION).output


@pytest.mark.parametrize("form", [ToolOutput, NativeOutput])
def test_output_types_are_met(agent, form):
    result = agent(output_type=form(Person)).run_sync("Give me a person.")
    assert isinstance(result.output, Person)

    async def stream():
        async with agent(output_type=form(Person)).run_stream("Give me a person.") as result:
            return [part async for part in result.stream_output(debounce_by=None)][-1]

    assert asyncio.run(stream()) == result.output
