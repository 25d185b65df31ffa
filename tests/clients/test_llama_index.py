"""LlamaIndex's `OpenAILike`: chat, completion, tools and the agent."""

import asyncio

import pydantic
import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from conftest import MODEL

QUESTION = "What is 17 + 25? Use the tool."


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=150)


def add(a: float, b: float) -> float:
    """Adds two numbers"""
    return a + b


@pytest.fixture()
def model(base_url):
    return OpenAILike(
        model=MODEL,
        api_base=base_url,
        api_key="none",
        context_window=1024,
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
        temperature=0,
        max_tokens=80,
        max_retries=0,
    )


def test_chat_whole_and_streamed(model):
    messages = [ChatMessage(role="user", content="Hello!")]
    whole = model.chat(messages).message.content
    assert whole
    assert list(model.stream_chat(messages))[-1].message.content == whole
    assert asyncio.run(model.achat(messages)).message.content == whole


def test_completions_whole_and_streamed(model):
    model.is_chat_model = False
    whole = model.complete("Once upon").text
    assert whole and list(model.stream_complete("Once upon"))[-1].text == whole


def test_tools_are_called_and_their_results_taken(model):
    answer = model.predict_and_call([FunctionTool.from_defaults(add)], QUESTION)
    assert [source.tool_name for source in answer.sources] == ["add"]


def test_streamed_tool_calls_are_the_whole_ones(model):
    tools = [FunctionTool.from_defaults(add)]
    whole = model.get_tool_calls_from_response(model.chat_with_tools(tools, QUESTION))
    last = list(model.stream_chat_with_tools(tools, QUESTION))[-1]
    streamed = model.get_tool_calls_from_response(last)
    assert [(call.tool_name, call.tool_kwargs) for call in streamed] == [
        (call.tool_name, call.tool_kwargs) for call in whole
    ]


def test_the_agent_calls_its_tool_and_answers(model):
    async def run():
        return await FunctionAgent(tools=[add], llm=model).run(QUESTION)

    answer = asyncio.run(run())
    assert answer.tool_calls and answer.tool_calls[0].tool_name == "add"
    assert str(answer)


def test_structured_output_is_the_schema_s(model):
    structured = model.as_structured_llm(Person)
    assert isinstance(structured.complete("Give me a person.").raw, Person)
