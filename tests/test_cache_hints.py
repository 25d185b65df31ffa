"""What clients ask to keep in the cache of prompts, in the forms of OpenAI and Anthropic, against the real binary."""

import re

import httpx
import pytest

from conftest import Server

# Room for about twelve of the prompts, six of them marked.
MEMORY = "16MiB"


def words(number, n_words=180):
    return f"Story {number}: " + " ".join(f"word{(i * 7 + number) % 50}" for i in range(n_words))


@pytest.fixture(scope="module")
def server(binary):
    server = Server(binary, "--kv-cache-memory", MEMORY)
    yield server
    server.process.kill()


def metric(server, name, **labels):
    text = httpx.get(server.url + "/metrics").text
    found = re.findall(rf"^{name}{{([^}}]*)}} (\S+)", text, re.M)
    return sum(float(value) for shown, value in found if all(f'{k}="{v}"' in shown for k, v in labels.items()))


def chat(server, number, **more):
    body = {"model": "throng-starter", "messages": [{"role": "user", "content": words(number)}], "max_tokens": 4}
    answer = httpx.post(server.url + "/v1/chat/completions", json=body | {"temperature": 0} | more, timeout=60)
    answer.raise_for_status()
    usage = answer.json()["usage"]
    return answer, usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


def message(server, **body):
    body = {"model": "throng-starter", "max_tokens": 4, "temperature": 0} | body
    answer = httpx.post(server.url + "/v1/messages", json=body, timeout=60)
    return answer.status_code, answer.json()


def flood(server, numbers):
    return [chat(server, number)[1] for number in numbers]


def test_retention_of_openai_outlasts_other_prompts(server):
    plain, _, total = chat(server, 1)
    kept, _, _ = chat(server, 2, prompt_cache_retention="24h", prompt_cache_key="mine")
    assert "x-throng-ignored" not in kept.headers
    assert metric(server, "throng_kv_blocks_marked") >= total // 16
    flood(server, range(100, 130))
    assert metric(server, "throng_kv_blocks_evicted_total", reason="unmarked") > 0
    assert chat(server, 1)[1] < total // 2, "a prompt that nobody asked to keep gave way"
    again, found, _ = chat(server, 2)
    assert found >= total - 32, "the one that was to be kept is there"
    assert again.json()["choices"][0]["message"]["content"] == kept.json()["choices"][0]["message"]["content"]
    assert metric(server, "throng_cache_hit_tokens_total", source="memory") >= found


def test_retentions_are_checked(server):
    for retention in ("in_memory", "in-memory", "24h"):
        chat(server, 1, prompt_cache_retention=retention)
    body = {"model": "throng-starter", "messages": [{"role": "user", "content": "a"}], "prompt_cache_retention": "1y"}
    refused = httpx.post(server.url + "/v1/chat/completions", json=body)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "prompt_cache_retention"


@pytest.mark.parametrize("place", ["part", "message"])
def test_marks_of_anthropic_in_the_form_of_openai_are_kept(server, place):
    mark, number = {"cache_control": {"type": "ephemeral"}}, {"part": 11, "message": 12}[place]
    document = {"type": "text", "text": words(number)}

    def ask(question, **key):
        messages = [
            {"role": "system", "content": [document | (key if place == "part" else {})]} | (key if place == "message" else {}),
            {"role": "user", "content": question},
        ]
        answer, found, total = chat(server, number, messages=messages)
        assert "x-throng-ignored" not in answer.headers
        return answer.json()["choices"][0]["message"]["content"], found, total

    before = metric(server, "throng_kv_blocks_marked")
    text, _, total = ask("What is the first word of it?", **mark)
    marked = metric(server, "throng_kv_blocks_marked") - before
    assert total // 16 - 3 <= marked <= total // 16, "the document, and not the question"
    flood(server, range(200, 230))
    again, found, _ = ask("What is the first word of it?", **mark)
    assert (again, found >= total - 48) == (text, True), found
    # Neither more marks than four nor other forms are errors.
    many = [{"type": "text", "text": f"Part {part}."} | mark for part in range(6)]
    assert chat(server, number, messages=[{"role": "user", "content": many}])
    other = chat(server, number, messages=[{"role": "user", "content": [document | {"cache_control": {"type": "x"}}]}])
    assert other[0].headers["x-throng-ignored"] == "messages[].content[].cache_control"


def test_marks_of_anthropic_are_kept_and_counted(server):
    document = {"type": "text", "text": words(3), "cache_control": {"type": "ephemeral"}}

    def ask(question):
        status, answer = message(server, messages=[{"role": "user", "content": [document, {"type": "text", "text": question}]}])
        assert status == 200, answer
        return answer["usage"]

    first = ask("What is the first word of it?")
    created = first["cache_creation_input_tokens"]
    assert created > 160 and created % 16 == 0 and first["input_tokens"] > 0, first
    assert first["cache_creation"] == {"ephemeral_5m_input_tokens": created, "ephemeral_1h_input_tokens": 0}
    read_first = first["cache_read_input_tokens"]
    flood(server, range(200, 230))
    second = ask("How many words are there, all in all?")
    assert second["cache_read_input_tokens"] == read_first + created, (first, second)
    assert second["cache_creation_input_tokens"] == 0


def test_marks_of_a_system_prompt_tools_and_a_conversation(server):
    tool = {"name": "look", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system = [{"type": "text", "text": words(4), "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    turns = [{"role": "user", "content": "Go on. " * 40}]
    status, answer = message(server, tools=[tool], system=system, messages=turns, cache_control={"type": "ephemeral"})
    assert status == 200, answer
    kept = answer["usage"]["cache_creation"]
    assert kept["ephemeral_1h_input_tokens"] > 160 and kept["ephemeral_5m_input_tokens"] > 16, answer["usage"]
    assert answer["usage"]["input_tokens"] < 16


def test_marks_of_a_stream_are_counted_at_its_start(server):
    body = {"model": "throng-starter", "max_tokens": 4, "stream": True, "cache_control": {"type": "ephemeral"}}
    body["messages"] = [{"role": "user", "content": words(5)}]
    text = httpx.post(server.url + "/v1/messages", json=body, timeout=60).text
    assert re.search(r'"message_start".*"cache_creation_input_tokens":[1-9]', text), text


@pytest.mark.parametrize(
    "mark, told",
    [
        ({"type": "forever"}, "'ephemeral'"),
        ({"type": "ephemeral", "ttl": "2h"}, "'5m', '1h'"),
        ({"ttl": "1h"}, "messages[0].content[0].cache_control.type"),
    ],
)
def test_faulty_marks_are_refused(server, mark, told):
    content = [{"type": "text", "text": "a", "cache_control": mark}]
    status, answer = message(server, messages=[{"role": "user", "content": content}])
    assert status == 400 and told in answer["error"]["message"], answer


def test_a_fifth_mark_is_refused(server):
    content = [{"type": "text", "text": f"{i}", "cache_control": {"type": "ephemeral"}} for i in range(5)]
    status, answer = message(server, messages=[{"role": "user", "content": content}])
    assert status == 400 and "Found 5" in answer["error"]["message"], answer
