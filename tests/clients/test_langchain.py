"""LangChain's `ChatOpenAI` and its agent."""

import asyncio

import pydantic
import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

from conftest import EMBEDDER, MODEL

QUESTION = "What is 17 + 25? Use the tool."


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=150)


@tool
def add(a: float, b: float) -> float:
    """Adds two numbers"""
    return a + b


@pytest.fixture(scope="module")
def model(base_url):
    return ChatOpenAI(base_url=base_url, model=MODEL, temperature=0, max_tokens=80, max_retries=0)


def test_invoke_stream_and_batch_agree(model):
    answer = model.invoke("Hello!")
    assert answer.content and answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] == "stop"
    chunks = list(model.stream("Hello!"))
    assert len(chunks) > 2 and "".join(chunk.content for chunk in chunks) == answer.content
    assert [again.content for again in model.batch(["Hello!"] * 3)] == [answer.content] * 3
    assert asyncio.run(model.ainvoke("Hello!")).content == answer.content


def test_tools_are_called_in_a_loop(model):
    bound = model.bind_tools([add])
    messages = [HumanMessage(QUESTION)]
    call = bound.invoke(messages)
    assert [asked["name"] for asked in call.tool_calls] == ["add"]
    results = [add.invoke(asked) for asked in call.tool_calls]
    assert all(isinstance(result, ToolMessage) for result in results)
    assert bound.invoke([*messages, call, *results]).content


def test_streamed_tool_calls_are_the_whole_ones(model):
    bound = model.bind_tools([add])
    whole = bound.invoke(QUESTION)
    total = None
    for chunk in bound.stream(QUESTION):
        total = chunk if total is None else total + chunk
    assert [(asked["name"], asked["args"]) for asked in total.tool_calls] == [
        (asked["name"], asked["args"]) for asked in whole.tool_calls
    ]
    assert total.response_metadata["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("choice", ["add", "required", "any", True])
def test_a_required_tool_is_called_whatever_the_question(model, choice):
    answer = model.bind_tools([add], tool_choice=choice).invoke("Tell me a story.")
    assert [asked["name"] for asked in answer.tool_calls] == ["add"]
    assert set(answer.tool_calls[0]["args"]) == {"a", "b"}


def test_the_agent_calls_its_tool_and_answers(model):
    answer = create_agent(model, [add]).invoke({"messages": [HumanMessage(QUESTION)]})
    kinds = [message.type for message in answer["messages"]]
    assert kinds[:3] == ["human", "ai", "tool"] and kinds[-1] == "ai"
    assert answer["messages"][-1].content


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_the_schema_s(model, method):
    structured = model.with_structured_output(Person, method=method)
    person = structured.invoke("Give me a person.")
    assert isinstance(person, Person)
    assert list(structured.stream("Give me a person."))[-1] == person


def test_json_mode_gives_an_object(model):
    structured = model.with_structured_output(None, method="json_mode")
    assert isinstance(structured.invoke("Give me a person as JSON."), dict)


def test_text_completions(base_url):
    model = OpenAI(base_url=base_url, model=MODEL, temperature=0, max_tokens=8, max_retries=0)
    assert model.invoke("Once upon") == "".join(model.stream("Once upon"))


def test_embeddings(embedder_url):
    model = OpenAIEmbeddings(base_url=embedder_url, model=EMBEDDER, check_embedding_ctx_length=False, max_retries=0)
    one, many = model.embed_query("the lazy dog"), model.embed_documents(["a quick fox", "the lazy dog"])
    assert many[1] == one != many[0]


def test_the_responses_api(base_url):
    model = ChatOpenAI(base_url=base_url, model=MODEL, use_responses_api=True, max_retries=0)
    assert model.invoke("Hello!").text
