"""OpenAI's official library for Python over a WebSocket connection to `/v1/responses`: of the server that has the model, and of a gateway
for which that server is an upstream engine."""

import contextlib
import json

import openai
import pytest

from conftest import MODEL
from test_foreign_engines import gateway, until_state
from test_responses import TOOL

ASKED = dict(type="response.create", model=MODEL, temperature=0, max_output_tokens=40)
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


@pytest.fixture(scope="module", params=["own", "upstream"])
def client(request, binary, server, base_url):
    with contextlib.ExitStack() as stack:
        if request.param == "upstream":
            url = stack.enter_context(gateway(binary, server.url))
            until_state(url, "ready")
            base_url = f"{url}/v1"
        yield stack.enter_context(openai.OpenAI(base_url=base_url, api_key="none", max_retries=0))


def told(connection, **request):
    """The events of a response."""
    connection.send({**ASKED, **request})
    events = []
    while not events or events[-1].type not in ENDS:
        events.append(connection.recv())
    return events


def fault(event):
    """Status and code of an error, which older versions of the library do not have as fields."""
    told = event.to_dict()
    assert told["type"] == "error", told
    return told["status"], told["error"]["code"]


def test_a_response_is_told_by_the_events_of_a_stream(client):
    whole = client.responses.create(model=MODEL, temperature=0, max_output_tokens=40, input="Hello!")
    with client.responses.connect() as connection:
        events = told(connection, input="Hello!")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == whole.output_text


def test_turns_go_on_without_a_store(client):
    with client.responses.connect() as connection:
        prepared = told(connection, input="My name is Ada.", store=False, generate=False)[-1].response
        assert prepared.output == []
        first = told(connection, input="What is my name?", store=False, previous_response_id=prepared.id)[-1].response
        second = told(connection, input="And now?", store=False, previous_response_id=first.id)[-1].response
        assert second.previous_response_id == first.id
        assert second.usage.input_tokens > first.usage.input_tokens
        lost = told(connection, input="Again?", store=False, previous_response_id=first.id)[-1]
        assert fault(lost) == (400, "previous_response_not_found")


def test_a_tool_is_called_and_its_result_taken(client):
    asked = dict(tools=[TOOL], tool_choice="required", store=False)
    with client.responses.connect() as connection:
        called = told(connection, input="What time is it in Oslo?", **asked)[-1].response
        call = next(item for item in called.output if item.type == "function_call")
        assert call.name == TOOL["name"] and json.loads(call.arguments)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}
        answer = told(connection, input=[result], store=False, previous_response_id=called.id)[-1].response
    assert answer.output_text


def test_lanes_share_a_connection(client):
    with client.responses.connect() as connection:
        for lane in "ab":
            connection.send({**ASKED, "input": "Hello!", "stream_id": lane})
        events = []
        while sum(event.type in ENDS for event in events) < 2:
            events.append(connection.recv())
        for lane in "ab":
            of_lane = [event for event in events if event.stream_id == lane]
            assert of_lane[-1].type in ENDS and of_lane[0].type == "response.created"


def test_errors_are_told_and_the_connection_stays(client):
    with client.responses.connect() as connection:
        for request, status, code in [
            (dict(input="x", temperature=9), 400, "decimal_above_max_value"),
            (dict(input="x", model="none"), 404, "model_not_found"),
            (dict(input="x", background=True), 400, "unsupported_parameter"),
        ]:
            error = told(connection, **request)[-1]
            assert fault(error) == (status, code), error
        assert told(connection, input="Hello!")[-1].type in ENDS[:2]
