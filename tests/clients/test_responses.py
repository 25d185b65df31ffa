"""OpenAI's official library for Python against `/v1/responses`."""

import json
import sys
from pathlib import Path

import openai
import pytest
from pydantic import BaseModel

from conftest import MODEL

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from replay import write  # noqa: E402

ASKED = dict(model=MODEL, temperature=0, max_output_tokens=40)
TOOL = {
    "type": "function",
    "name": "get_time",
    "description": "The time in a zone.",
    "parameters": {
        "type": "object",
        "properties": {"zone": {"type": "string", "maxLength": 20}},
        "required": ["zone"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture(scope="module")
def client(base_url):
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def thinker(start, tmp_path_factory):
    """A model that thinks, says something and calls two tools, each time it is asked."""
    path = tmp_path_factory.mktemp("replay") / "thinker.gguf"
    template = "{% if false %}<think></think><tool_call>{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    parts = [
        "<think>", "Two cities, so two calls.", "</think>",
        "I will look it up. <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>"
        "<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":\"Rom\"}}</tool_call>",
    ]
    write(path, parts, template=template, control=["<think>", "</think>"])
    with start(path, "--served-model-name", "thinker") as server:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            yield client


def text_of(events, kind):
    return "".join(event.delta for event in events if event.type == kind)


def test_a_response_whole_and_streamed(client):
    whole = client.responses.create(input="Hello!", instructions="Be kind.", **ASKED)
    assert (whole.object, whole.status, whole.error) == ("response", "completed", None)
    assert whole.output[0].role == "assistant" and whole.output_text
    events = list(client.responses.create(input="Hello!", instructions="Be kind.", stream=True, **ASKED))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert text_of(events, "response.output_text.delta") == whole.output_text == events[-1].response.output_text
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens > 0
    counted = client.responses.input_tokens.count(model=MODEL, input="Hello!", instructions="Be kind.")
    assert counted.input_tokens == whole.usage.input_tokens


def test_every_object_has_the_fields_of_the_library(client, thinker):
    """Reads what comes with the library's own types, strictly."""
    event_type = openai.types.responses.ResponseStreamEvent
    from pydantic import TypeAdapter

    adapter = TypeAdapter(event_type)
    for library, model in (client, MODEL), (thinker, "thinker"):
        with library.responses.with_streaming_response.create(model=model, input="Hello!", stream=True) as raw:
            names = []
            for line in raw.iter_lines():
                if line.startswith("event: "):
                    names.append(line.removeprefix("event: "))
                elif line.startswith("data: ") and line != "data: [DONE]":
                    assert adapter.validate_json(line.removeprefix("data: ")).type == names[-1]
            assert names[-1] == "response.completed"


def test_the_limit_of_tokens_makes_a_response_incomplete(client):
    cut = client.responses.create(input="Tell a story.", model=MODEL, temperature=0, max_output_tokens=3)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert cut.output[0].status == "incomplete" and cut.usage.output_tokens == 3


def test_history_is_sent_back_as_it_came(client):
    first = client.responses.create(input="My name is Ada.", **ASKED)
    again = [{"role": "user", "content": "My name is Ada."}, *first.output, {"role": "user", "content": "Who am I?"}]
    second = client.responses.create(input=again, **ASKED)
    assert second.status in ("completed", "incomplete")
    assert second.usage.input_tokens > first.usage.input_tokens


def test_a_tool_is_called_and_its_output_is_read(client):
    ask = {"role": "user", "content": "What time is it in UTC?"}
    asked = dict(model=MODEL, temperature=0, max_output_tokens=120, tools=[TOOL])
    called = client.responses.create(input=[ask], tool_choice="required", **asked)
    call = next(item for item in called.output if item.type == "function_call")
    assert call.name == "get_time" and isinstance(json.loads(call.arguments)["zone"], str)
    with client.responses.stream(input=[ask], tool_choice={"type": "function", "name": "get_time"}, **asked) as stream:
        deltas = text_of(list(stream), "response.function_call_arguments.delta")
    assert json.loads(deltas)["zone"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "It is noon."}
    after = client.responses.create(input=[ask, *called.output, output], **asked)
    assert after.status in ("completed", "incomplete")


def test_a_custom_tool_is_given_free_text(client):
    tool = {"type": "custom", "name": "run", "description": "Runs a shell command."}
    ask = {"role": "user", "content": "List the files."}
    asked = dict(model=MODEL, temperature=0, max_output_tokens=200, tools=[tool])
    called = client.responses.create(input=[ask], tool_choice={"type": "custom", "name": "run"}, **asked)
    call = next(item for item in called.output if item.type == "custom_tool_call")
    assert call.name == "run" and isinstance(call.input, str)
    output = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "a.txt"}
    assert client.responses.create(input=[ask, *called.output, output], **asked).output is not None


def test_reasoning_and_parallel_calls(thinker):
    tool = {**TOOL, "name": "weather", "strict": False, "parameters": {"type": "object"}}
    whole = thinker.responses.create(model="thinker", input="Weather?", tools=[tool])
    kinds = [item.type for item in whole.output]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    assert whole.output[0].content[0].text.strip() == "Two cities, so two calls."
    assert [json.loads(item.arguments)["city"] for item in whole.output[2:]] == ["Oslo", "Rom"]
    assert whole.usage.output_tokens_details.reasoning_tokens > 0
    events = list(thinker.responses.create(model="thinker", input="Weather?", tools=[tool], stream=True))
    streamed = events[-1].response
    assert [item.type for item in streamed.output] == kinds
    assert text_of(events, "response.reasoning_text.delta") == whole.output[0].content[0].text
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.id for item in done] == [item.id for item in streamed.output]
    once = thinker.responses.create(model="thinker", input="Weather?", tools=[tool], parallel_tool_calls=False)
    assert [item.type for item in once.output].count("function_call") == 1
    outputs = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
        for item in whole.output if item.type == "function_call"
    ]
    history = [{"role": "user", "content": "Weather?"}, *whole.output, *outputs]
    assert thinker.responses.create(model="thinker", input=history).status == "completed"


def test_reasoning_as_a_summary_and_sealed(thinker):
    asked = dict(model="thinker", input="Weather?", reasoning={"effort": "low", "summary": "auto"})
    include = ["reasoning.encrypted_content"]
    events = list(thinker.responses.create(include=include, stream=True, **asked))
    item = events[-1].response.output[0]
    assert text_of(events, "response.reasoning_summary_text.delta") == item.summary[0].text
    assert item.encrypted_content and not item.content
    bare = {"type": "reasoning", "id": item.id, "summary": [], "encrypted_content": item.encrypted_content}
    again = [{"role": "user", "content": "Weather?"}, bare, {"role": "user", "content": "And now?"}]
    assert thinker.responses.create(model="thinker", input=again).status == "completed"


class Person(BaseModel):
    name: str
    age: int


def test_structured_output(client):
    parsed = client.responses.parse(
        model=MODEL, temperature=0, max_output_tokens=200, input="Ada is 36 years old.", text_format=Person
    )
    assert parsed.status == "incomplete" or isinstance(parsed.output_parsed, Person)
    plain = client.responses.create(
        model=MODEL, temperature=0, max_output_tokens=200, input="Ada is 36.", text={"format": {"type": "json_object"}}
    )
    assert plain.status == "incomplete" or isinstance(json.loads(plain.output_text), dict)


def test_logprobs(client):
    shown = dict(include=["message.output_text.logprobs"], top_logprobs=2, input="Hello!", **ASKED)
    part = client.responses.create(**shown).output[0].content[0]
    assert "".join(token.token for token in part.logprobs).strip() == part.text.strip()
    assert all(len(token.top_logprobs) == 2 for token in part.logprobs)
    events = list(client.responses.create(stream=True, **shown))
    streamed = [token for event in events if event.type == "response.output_text.delta" for token in event.logprobs]
    assert [token.token for token in streamed] == [token.token for token in part.logprobs]


def test_errors_are_the_library_s_types(client):
    with pytest.raises(openai.NotFoundError, match="nobody"):
        client.responses.create(model="nobody", input="Hello!")
    for wrong, named in [
        (dict(input=[]), "input"),
        (dict(input=[{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/y"}]}]), r"input\[0\]"),
        (dict(input="a", temperature=3), "temperature"),
        (dict(input="a", tools=[{"type": "web_search"}]), r"tools\[0\].type"),
        (dict(input=[{"type": "web_search_call", "id": "ws_1", "status": "completed"}]), "web_search_call"),
        (dict(input=[{"type": "function_call_output", "call_id": "c", "output": "x"}]), "call_id c"),
        (dict(input="a", previous_response_id="resp_1"), "resp_1"),
        (dict(input="a", tool_choice="required"), "tool_choice"),
        (dict(input="a", text={"format": {"type": "json_schema"}}), "text.format"),
        (dict(input="a", prompt={"id": "pmpt_1"}), "prompt"),
    ]:
        with pytest.raises(openai.BadRequestError, match=named):
            client.responses.create(model=MODEL, **wrong)


def test_truncation_leaves_out_the_oldest_turns(client):
    turn = [{"role": "user", "content": "word " * 200}, {"role": "assistant", "content": "yes"}]
    long = [*turn * 8, {"role": "user", "content": "Hello!"}]
    with pytest.raises(openai.BadRequestError, match="context"):
        client.responses.create(input=long, **ASKED)
    kept = client.responses.create(input=long, truncation="auto", **ASKED)
    assert kept.truncation == "auto" and kept.output_text
