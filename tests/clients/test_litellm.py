"""LiteLLM as a library, by the providers that its users choose for such a server."""

import asyncio
import json

import litellm
import pydantic
import pytest

from conftest import EMBEDDER, MODEL

HELLO = [{"role": "user", "content": "Hello!"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=150)


@pytest.fixture(params=["openai", "hosted_vllm"])
def settings(request, base_url):
    return dict(
        model=f"{request.param}/{MODEL}", api_base=base_url, api_key="none", temperature=0, max_tokens=80, num_retries=0
    )


def test_chats_whole_streamed_and_asynchronous(settings):
    whole = litellm.completion(messages=HELLO, **settings)
    assert whole.choices[0].message.content and whole.usage.completion_tokens > 0
    chunks = list(litellm.completion(messages=HELLO, stream=True, stream_options={"include_usage": True}, **settings))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    again = asyncio.run(litellm.acompletion(messages=HELLO, **settings))
    assert again.choices[0].message.content == text


def test_tools_are_called_in_a_loop(settings):
    messages = [{"role": "user", "content": "What is 17 + 25? Use the tool."}]
    message = litellm.completion(messages=messages, tools=[ADD], **settings).choices[0].message
    (call,) = message.tool_calls
    result = sum(json.loads(call.function.arguments).values())
    streamed = list(litellm.completion(messages=messages, tools=[ADD], stream=True, **settings))
    (built,) = litellm.stream_chunk_builder(streamed, messages=messages).choices[0].message.tool_calls
    assert (built.function.name, built.function.arguments) == ("add", call.function.arguments)
    reply = {"role": "tool", "tool_call_id": call.id, "name": "add", "content": str(result)}
    answer = litellm.completion(messages=[*messages, message, reply], tools=[ADD], **settings)
    assert answer.choices[0].message.content


def test_structured_output_is_the_schema_s(settings):
    answer = litellm.completion(messages=HELLO, response_format=Person, **settings)
    assert Person.model_validate_json(answer.choices[0].message.content)


def test_text_completions(base_url):
    settings = dict(model=f"text-completion-openai/{MODEL}", api_base=base_url, api_key="none", num_retries=0)
    whole = litellm.text_completion(prompt="Once upon", temperature=0, max_tokens=8, **settings)
    stream = litellm.text_completion(prompt="Once upon", temperature=0, max_tokens=8, stream=True, **settings)
    assert whole.choices[0].text and "".join(chunk.choices[0].text or "" for chunk in stream) == whole.choices[0].text


def test_errors_are_litellm_s_own(settings):
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=HELLO, **{**settings, "model": "openai/nobody"})
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=[{"role": "user", "content": "word " * 20000}], **settings)
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(messages=HELLO, **{**settings, "temperature": -1})


def test_embeddings(embedder_url):
    settings = dict(api_base=embedder_url, api_key="none", max_retries=0)
    one, other = litellm.embedding(model=f"openai/{EMBEDDER}", input=["the lazy dog", "a quick fox"], **settings).data
    assert len(one["embedding"]) == len(other["embedding"]) and one["embedding"] != other["embedding"]


def test_the_responses_api(base_url):
    settings = dict(api_base=base_url, api_key="none", max_retries=0)
    assert litellm.responses(model=f"openai/{MODEL}", input="Hello!", **settings).output
