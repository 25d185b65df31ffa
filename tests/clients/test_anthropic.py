"""Anthropic's official library for Python against `/v1/messages`."""

import anthropic
import pytest

from conftest import MODEL

HELLO = [{"role": "user", "content": "Hello!"}]
TOOL = {
    "name": "get_time",
    "description": "The time in a zone.",
    "input_schema": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]},
}


@pytest.fixture(scope="module")
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def test_a_message_whole_and_streamed(client):
    asked = dict(model=MODEL, max_tokens=40, extra_body={"temperature": 0}, messages=HELLO, system="Be kind.")
    whole = client.messages.create(**asked)
    assert (whole.role, whole.stop_reason) == ("assistant", "end_turn")
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == whole.content[0].text == message.content[0].text
    assert message.usage.output_tokens == whole.usage.output_tokens > 0
    counted = client.messages.count_tokens(model=MODEL, messages=HELLO, system="Be kind.")
    assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


def test_a_tool_is_used_and_its_result_is_read(client):
    asked = dict(model=MODEL, max_tokens=120, extra_body={"temperature": 0}, tools=[TOOL])
    ask = {"role": "user", "content": "What time is it in UTC?"}
    called = client.messages.create(messages=[ask], tool_choice={"type": "any"}, **asked)
    use = next(block for block in called.content if block.type == "tool_use")
    assert (called.stop_reason, use.name) == ("tool_use", "get_time")
    assert isinstance(use.input["zone"], str)
    with client.messages.stream(messages=[ask], tool_choice={"type": "any"}, **asked) as stream:
        assert [block.input for block in stream.get_final_message().content if block.type == "tool_use"] == [use.input]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "It is noon."}
    history = [ask, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(messages=history, **asked).stop_reason in ("end_turn", "max_tokens", "tool_use")


def test_errors_are_the_library_s_types(client):
    with pytest.raises(anthropic.NotFoundError, match="nobody"):
        client.messages.create(model="nobody", max_tokens=3, messages=HELLO)
    with pytest.raises(anthropic.BadRequestError, match="messages"):
        client.messages.create(model=MODEL, max_tokens=3, messages=[])


def test_models_are_listed(client):
    assert MODEL in [model.id for model in client.models.list()]
