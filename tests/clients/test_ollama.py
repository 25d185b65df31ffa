"""Ollama's official library for Python against `/api`."""

import ollama
import pytest

from conftest import MODEL

HELLO = [{"role": "user", "content": "Hello!"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time in a zone.",
        "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]},
    },
}


@pytest.fixture(scope="module")
def client(server):
    return ollama.Client(server.url)


def test_a_chat_whole_and_streamed(client):
    options = {"temperature": 0, "num_predict": 40}
    whole = client.chat(model=MODEL, messages=HELLO, options=options)
    assert (whole.done, whole.done_reason) == (True, "stop")
    pieces = list(client.chat(model=MODEL, messages=HELLO, options=options, stream=True))
    assert "".join(piece.message.content for piece in pieces) == whole.message.content
    assert pieces[-1].eval_count == whole.eval_count > 0
    assert client.generate(model=MODEL, prompt="Hello!", options=options).response == whole.message.content


def test_a_form_is_kept(client):
    schema = {"type": "object", "properties": {"name": {"enum": ["Ada", "Bob"]}}, "required": ["name"]}
    options = {"temperature": 0, "num_predict": 60}
    said = client.chat(model=MODEL, messages=HELLO, format=schema, options=options).message.content
    assert said.startswith("{")


def test_tools_are_taken(client):
    answer = client.chat(model=MODEL, messages=HELLO, tools=[TOOL], options={"num_predict": 20})
    assert answer.message.role == "assistant"


def test_models_are_listed_and_shown(client):
    assert MODEL in [model.model for model in client.list().models]
    assert MODEL in [model.model for model in client.ps().models]
    assert "completion" in client.show(MODEL).capabilities


def test_errors_are_the_library_s_types(client):
    with pytest.raises(ollama.ResponseError, match="nobody") as error:
        client.chat(model="nobody", messages=HELLO)
    assert error.value.status_code == 404
