"""Files and batches through OpenAI's and Anthropic's official libraries, over one database with two tenants."""

import json
import os
import subprocess
import time

import anthropic
import openai
import pytest

from conftest import MODEL

PATIENCE_S = 240


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    return os.environ.get("THRONG_TEST_DATABASE") or str(tmp_path_factory.mktemp("store") / "store.db")


@pytest.fixture(scope="module")
def keys(binary, database):
    """A key of each of two projects."""
    make = lambda project: subprocess.run(
        [binary, "keys", "create", "--database", database, "--organisation", "acme", "--project", project],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout.strip()
    return [make("first"), make("second")]


@pytest.fixture(scope="module")
def server(start, database, keys):
    with start("--database", database) as server:
        yield server


@pytest.fixture(scope="module")
def client(server, keys):
    with server.client(api_key=keys[0]) as client:
        yield client


@pytest.fixture(scope="module")
def stranger(server, keys):
    with server.client(api_key=keys[1]) as client:
        yield client


@pytest.fixture(scope="module")
def claude(server, keys):
    with anthropic.Anthropic(base_url=server.url, api_key=keys[0], max_retries=0) as client:
        yield client


def line(custom_id, **body):
    body = {"model": MODEL, "max_tokens": 4, "temperature": 0, **body}
    body.setdefault("messages", [{"role": "user", "content": f"Say {custom_id}."}])
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def upload(client, lines):
    text = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines)
    return client.files.create(file=("requests.jsonl", text.encode()), purpose="batch")


def begin(client, lines, endpoint="/v1/chat/completions", **more):
    file = upload(client, lines)
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


def ended(retrieve, is_ended):
    end = time.monotonic() + PATIENCE_S
    while not is_ended(batch := retrieve()):
        assert time.monotonic() < end, batch
        time.sleep(0.1)
    return batch


def finished(client, batch):
    states = ("completed", "failed", "expired", "cancelled")
    return ended(lambda: client.batches.retrieve(batch.id), lambda batch: batch.status in states)


def results(client, file_id):
    return [json.loads(each) for each in client.files.content(file_id).text.splitlines()]


def test_a_file_is_uploaded_listed_read_and_deleted(client, stranger):
    content = os.urandom(3 << 20) + b"end"
    file = client.files.create(
        file=("naïve.bin", content), purpose="user_data",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (file.filename, file.bytes, file.purpose, file.status) == ("naïve.bin", len(content), "user_data", "processed")
    assert file.expires_at == file.created_at + 3600
    assert client.files.retrieve(file.id).model_dump() == file.model_dump()
    assert client.files.content(file.id).read() == content
    second = upload(client, [line("a")])
    listed = [each.id for each in client.files.list(limit=1)]
    assert listed.index(second.id) < listed.index(file.id), "the newest first, page by page"
    assert file.id not in [each.id for each in client.files.list(purpose="batch")]
    for ask in stranger.files.retrieve, stranger.files.content, stranger.files.delete:
        with pytest.raises(openai.NotFoundError):
            ask(file.id)
    assert file.id not in [each.id for each in stranger.files.list()]
    assert client.files.delete(file.id).deleted
    for ask in client.files.retrieve, client.files.content, client.files.delete:
        with pytest.raises(openai.NotFoundError):
            ask(file.id)


def test_bad_uploads_are_refused_and_leave_nothing(client, server, keys):
    before = {each.id for each in client.files.list()}
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.create(file=("a", b"x"), purpose="nothing")
    assert refused.value.param == "purpose"
    with pytest.raises(openai.BadRequestError):
        client.files.create(file=("a", b"x"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 1})
    with pytest.raises(openai.APIStatusError) as refused:
        client.post("/files", body={"purpose": "batch"}, cast_to=object)
    assert refused.value.status_code == 415
    assert {each.id for each in client.files.list()} == before


def test_a_batch_asks_for_responses(client):
    def asking(custom_id, **body):
        body = {"model": MODEL, "max_output_tokens": 4, "temperature": 0, "input": "Say hello.", **body}
        return {"custom_id": custom_id, "method": "POST", "url": "/v1/responses", "body": body}

    first = client.responses.create(model=MODEL, input="My name is Ada.", max_output_tokens=4)
    lines = [asking("plain"), asking("goes on", previous_response_id=first.id), asking("waits", background=True)]
    batch = finished(client, begin(client, lines, endpoint="/v1/responses"))
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 2, 1)
    answers = {each["custom_id"]: each["response"]["body"] for each in results(client, batch.output_file_id)}
    for name in "plain", "goes on":
        response = client.responses.retrieve(answers[name]["id"])
        assert response.output_text and response.model_dump()["output"][0]["id"] == answers[name]["output"][0]["id"]
    assert answers["goes on"]["previous_response_id"] == first.id
    (refused,) = results(client, batch.error_file_id)
    error = refused["response"]["body"]["error"]
    assert (refused["custom_id"], error["param"]) == ("waits", "background")


def test_a_batch_answers_its_lines_and_names_bad_ones(client, stranger):
    good = [line(f"line-{n}") for n in range(6)]
    bad = [
        "this is no JSON",
        line("line-0"),
        line("wrong model") | {"body": {"model": "unknown", "messages": [{"role": "user", "content": "x"}]}},
        line("bad parameter", temperature=9),
        line("elsewhere") | {"url": "/v1/embeddings"},
        line("streams", stream=True),
    ]
    batch = begin(client, [*good[:3], *bad, "", *good[3:]], metadata={"job": "nightly"})
    assert (batch.object, batch.endpoint, batch.metadata) == ("batch", "/v1/chat/completions", {"job": "nightly"})
    assert batch.expires_at - batch.created_at == 24 * 3600
    for ask in stranger.batches.retrieve, stranger.batches.cancel:
        with pytest.raises(openai.NotFoundError):
            ask(batch.id)
    done = finished(client, batch)
    assert (done.status, done.errors) == ("completed", None)
    counts = done.request_counts
    assert (counts.total, counts.completed, counts.failed) == (12, 6, 6)
    answers = {each["custom_id"]: each for each in results(client, done.output_file_id)}
    assert sorted(answers) == [f"line-{n}" for n in range(6)]
    for answer in answers.values():
        assert (answer["error"], answer["response"]["status_code"]) == (None, 200)
        completion = openai.types.chat.ChatCompletion.model_validate(answer["response"]["body"])
        assert completion.choices[0].message.content
    direct = client.chat.completions.create(**good[0]["body"])
    assert answers["line-0"]["response"]["body"]["choices"][0]["message"]["content"] == direct.choices[0].message.content
    errors = results(client, done.error_file_id)
    told = {each["custom_id"]: (each["response"] or {}).get("status_code") or each["error"]["code"] for each in errors}
    assert told == {
        None: "invalid_json_line", "line-0": "duplicate_custom_id", "wrong model": 404, "bad parameter": 400,
        "elsewhere": "invalid_url", "streams": "invalid_value",
    }
    file = client.files.retrieve(done.output_file_id)
    assert (file.purpose, file.bytes) == ("batch_output", len(client.files.content(file.id).read()))
    with pytest.raises(openai.NotFoundError):
        stranger.files.content(done.output_file_id)
    assert batch.id in [each.id for each in client.batches.list(limit=1)]
    assert batch.id not in [each.id for each in stranger.batches.list()]
    client.files.delete(done.output_file_id)
    with pytest.raises(openai.NotFoundError):
        client.files.content(done.output_file_id)
    assert len(results(client, done.error_file_id)) == 6


def test_batches_that_cannot_begin_fail(client):
    empty = finished(client, begin(client, [""]))
    assert (empty.status, empty.errors.data[0].code) == ("failed", "empty_file")
    with pytest.raises(openai.NotFoundError):
        client.batches.create(input_file_id="file-0", endpoint="/v1/completions", completion_window="24h")
    for change in {"endpoint": "/v1/x"}, {"completion_window": "1h"}, {"input_file_id": 5}:
        asked = {"input_file_id": "file-0", "endpoint": "/v1/completions", "completion_window": "24h", **change}
        with pytest.raises(openai.BadRequestError) as refused:
            client.batches.create(**asked)
        assert refused.value.param == next(iter(change))
    other = client.files.create(file=("a", b"{}"), purpose="user_data")
    with pytest.raises(openai.BadRequestError) as refused:
        client.batches.create(input_file_id=other.id, endpoint="/v1/completions", completion_window="24h")
    assert refused.value.param == "input_file_id"


def test_a_cancelled_batch_keeps_what_it_has(client):
    batch = begin(client, [line(f"line-{n}", max_tokens=32) for n in range(400)])
    ended(lambda: client.batches.retrieve(batch.id), lambda batch: batch.request_counts.completed > 0)
    assert client.batches.cancel(batch.id).status == "cancelling"
    done = finished(client, batch)
    assert (done.status, done.request_counts.total) == ("cancelled", 400)
    answers = results(client, done.output_file_id)
    assert 0 < len(answers) == done.request_counts.completed < 400
    assert len({each["custom_id"] for each in answers}) == len(answers)
    assert client.batches.cancel(batch.id).status == "cancelled"


def test_messages_in_batches(claude, server, keys):
    ask = lambda text, **more: {
        "model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": text}], **more
    }
    requests = [{"custom_id": f"m{n}", "params": ask(f"Say {n}.")} for n in range(4)]
    requests.append({"custom_id": "bad", "params": ask("x", temperature=9)})
    batch = claude.messages.batches.create(requests=requests)
    assert (batch.type, batch.processing_status) == ("message_batch", "in_progress")
    assert (batch.expires_at - batch.created_at).total_seconds() == 24 * 3600
    done = ended(lambda: claude.messages.batches.retrieve(batch.id), lambda batch: batch.processing_status == "ended")
    counts = done.request_counts
    assert (counts.succeeded, counts.errored, counts.processing, counts.canceled, counts.expired) == (4, 1, 0, 0, 0)
    found = {each.custom_id: each.result for each in claude.messages.batches.results(batch.id)}
    assert sorted(found) == ["bad", "m0", "m1", "m2", "m3"]
    assert found["m0"].message.content[0].text and found["m0"].message.usage.output_tokens > 0
    assert (found["bad"].type, found["bad"].error.error.type) == ("errored", "invalid_request_error")
    assert batch.id in [each.id for each in claude.messages.batches.list(limit=1)]
    with anthropic.Anthropic(base_url=server.url, api_key=keys[1], max_retries=0) as stranger:
        for call in stranger.messages.batches.retrieve, stranger.messages.batches.cancel, stranger.messages.batches.delete:
            with pytest.raises(anthropic.NotFoundError):
                call(batch.id)
    assert claude.messages.batches.delete(batch.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.batches.retrieve(batch.id)
    with pytest.raises(anthropic.BadRequestError, match="custom_id"):
        claude.messages.batches.create(requests=[requests[0], requests[0]])


def test_a_cancelled_batch_of_messages_says_which_were_not_answered(claude):
    params = {"model": MODEL, "max_tokens": 32, "messages": [{"role": "user", "content": "Tell me something."}]}
    batch = claude.messages.batches.create(
        requests=[{"custom_id": f"m{n}", "params": params} for n in range(300)]
    )
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.batches.delete(batch.id)
    assert claude.messages.batches.cancel(batch.id).processing_status == "canceling"
    done = ended(lambda: claude.messages.batches.retrieve(batch.id), lambda batch: batch.processing_status == "ended")
    found = [each for each in claude.messages.batches.results(batch.id)]
    assert sorted(each.custom_id for each in found) == sorted(f"m{n}" for n in range(300))
    assert sum(each.result.type == "canceled" for each in found) == done.request_counts.canceled > 0


def test_what_a_project_keeps_is_exported_and_deleted(binary, database, client, stranger):
    mine, theirs = upload(client, [line("kept")]), upload(stranger, [line("theirs")])
    run = lambda *arguments: subprocess.run(
        [binary, "store", *arguments, "--database", database, "--organisation", "acme", "--project", "first"],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout
    exported = [json.loads(each) for each in run("export").splitlines()]
    ids = {each.get("id") for each in exported}
    assert mine.id in ids and theirs.id not in ids
    content = next(each for each in exported if each.get("object") == mine.id)
    assert content["body"]["custom_id"] == "kept"
    run("delete")
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(mine.id)
    assert stranger.files.retrieve(theirs.id).id == theirs.id
    assert list(client.batches.list()) == []
