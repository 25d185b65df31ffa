"""The cases of the OpenResponses compliance command, checked against the types of its specification, over HTTP and WebSocket."""

import json
import sys
import urllib.request
from pathlib import Path

import openai
import pytest
from openresponses_types import types

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from replay import write  # noqa: E402

NAME = "scripted"
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"}},
        "required": ["location"],
    },
}


def user(content):
    return {"type": "message", "role": "user", "content": content}


TEXTS = {
    "basic response": [user("Say hello in exactly 3 words.")],
    "system prompt": [{"type": "message", "role": "system", "content": "You are a pirate."}, user("Say hello.")],
    "several turns": [
        user("My name is Alice."),
        {"type": "message", "role": "assistant", "content": "Hello Alice! Nice to meet you. How can I help you today?"},
        user("What is my name?"),
    ],
}
CALL = [user("What's the weather like in San Francisco?")]


@pytest.fixture(scope="module")
def url(start, tmp_path_factory):
    """A model that says hello, and one that calls the tool."""
    folder = tmp_path_factory.mktemp("replay")
    template = "{% if false %}<tool_call>{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "San Francisco, CA"}}\n</tool_call>'
    write(folder / "calls.gguf", [call], template=template)
    with start(folder / "calls.gguf", "--served-model-name", NAME) as server:
        yield server.url + "/v1"


def post(url, **request):
    body = json.dumps(request).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer none"}
    return urllib.request.urlopen(urllib.request.Request(url + "/responses", body, headers), timeout=120)


def event_types():
    """The specification's events by their names."""
    found = {}
    for name in dir(types):
        if name.endswith("StreamingEvent"):
            kind = getattr(types, name).model_fields["type"]
            values = getattr(kind.annotation, "__args__", None) or list(kind.annotation)
            found.update({str(getattr(value, "value", value)): getattr(types, name) for value in values})
    return found


EVENTS = event_types()


def check_events(events):
    """Checks the form of each event that the specification has, and gives the last response."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        assert event["type"] in EVENTS, event
        EVENTS[event["type"]].model_validate(event)
    last = events[-1]
    assert last["type"] == "response.completed"
    return check(last["response"])


def check(response):
    types.ResponseResource.model_validate(response)
    assert response["status"] == "completed" and response["output"]
    return response


def streamed(url, **request):
    with post(url, stream=True, **request) as reply:
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        frames = reply.read().decode().strip().split("\n\n")
    assert frames.pop() == "data: [DONE]"
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == "event: " + events[-1]["type"]
    return events


def by_socket(url, *requests):
    """The events of each request on one connection; each goes on from the one before."""
    with openai.OpenAI(base_url=url, api_key="none") as client, client.responses.connect() as connection:
        answers, previous = [], None
        for request in requests:
            message = {"type": "response.create", "store": False, "previous_response_id": previous, **request}
            types.WebSocketResponseCreateEvent.model_validate(message)
            connection.send(message)
            events = []
            while not events or events[-1]["type"] not in ("response.completed", "response.incomplete", "response.failed", "error"):
                events.append(json.loads(connection.recv_bytes()))
            previous = events[-1].get("response", {}).get("id", "resp_none")
            answers.append(events)
    return answers


@pytest.mark.parametrize("case", TEXTS)
def test_texts(base_url, case):
    from conftest import MODEL

    asked = dict(model=MODEL, input=TEXTS[case], temperature=0)
    with post(base_url, **asked) as reply:
        whole = check(json.load(reply))
    events = streamed(base_url, **asked)
    assert check_events(events)["output"][0]["content"] == whole["output"][0]["content"]
    (events,) = by_socket(base_url, asked)
    assert check_events(events)["output"][0]["content"] == whole["output"][0]["content"]


def test_calls(url):
    asked = dict(model=NAME, input=CALL, tools=[TOOL])
    with post(url, **asked) as reply:
        whole = check(json.load(reply))
    assert any(item["type"] == "function_call" for item in whole["output"])
    for events in (streamed(url, **asked), *by_socket(url, asked)):
        check_events(events)
        kinds = [event["type"] for event in events]
        assert "response.function_call_arguments.delta" in kinds and "response.function_call_arguments.done" in kinds
        for kind in "response.output_item.added", "response.output_item.done":
            assert any(event["type"] == kind and event["item"]["type"] == "function_call" for event in events)


def test_turns_on_a_connection(base_url):
    from conftest import MODEL

    asked = dict(model=MODEL, temperature=0)
    first, second = by_socket(base_url, {**asked, "input": "My name is Alice."}, {**asked, "input": "What is my name?"})
    assert check_events(second)["previous_response_id"] == first[-1]["response"]["id"]
    (lost,) = by_socket(base_url, {**asked, "input": "What is my name?", "previous_response_id": "resp_none"})
    types.WebSocketErrorEvent.model_validate(lost[-1])
    assert lost[-1]["error"]["code"] == "previous_response_not_found"


def test_images_are_refused_by_name(base_url):
    """No model of this server sees: the command's case with an image gets the API's error instead of an answer."""
    from conftest import MODEL

    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model=MODEL, input=[user([{"type": "input_text", "text": "What is it?"}, image])])
    assert "image" in refused.value.message
