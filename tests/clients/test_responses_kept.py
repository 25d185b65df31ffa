"""Kept responses and conversations through OpenAI's official library: over one store, with two servers and two tenants."""

import os
import signal
import subprocess
import time

import openai
import pytest

from conftest import MODEL

ASKED = dict(model=MODEL, temperature=0, max_output_tokens=24)
PATIENCE_S = 120


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
def servers(start, database, keys, tmp_path_factory):
    folder = tmp_path_factory.mktemp("journals")
    with start("--database", database, "--ledger-journal", folder / "a") as first:
        with start("--database", database, "--ledger-journal", folder / "b") as second:
            yield [first, second]


def library(server, key):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def client(servers, keys):
    with library(servers[0], keys[0]) as client:
        yield client


@pytest.fixture(scope="module")
def elsewhere(servers, keys):
    """The same tenant at the other server."""
    with library(servers[1], keys[0]) as client:
        yield client


@pytest.fixture(scope="module")
def stranger(servers, keys):
    with library(servers[0], keys[1]) as client:
        yield client


def ended(client, response):
    end = time.monotonic() + PATIENCE_S
    while response.status in ("queued", "in_progress"):
        assert time.monotonic() < end, response
        time.sleep(0.05)
        response = client.responses.retrieve(response.id)
    return response


def test_a_response_is_kept_and_deleted(client, elsewhere, stranger):
    made = client.responses.create(input="Hello!", metadata={"a": "b"}, **ASKED)
    assert made.store is True and made.id.startswith("resp_")
    for library in client, elsewhere:
        assert library.responses.retrieve(made.id).model_dump() == made.model_dump()
    with pytest.raises(openai.NotFoundError, match=made.id):
        stranger.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        stranger.responses.delete(made.id)
    with pytest.raises(openai.BadRequestError, match=made.id):
        stranger.responses.create(input="?", previous_response_id=made.id, **ASKED)
    items = client.responses.input_items.list(made.id)
    assert [item.content[0].text for item in items] == ["Hello!"]
    client.responses.delete(made.id)
    for library in client, elsewhere:
        with pytest.raises(openai.NotFoundError):
            library.responses.retrieve(made.id)


def test_a_streamed_response_is_kept_as_it_was_told(client):
    events = list(client.responses.create(input="Hello!", stream=True, **ASKED))
    told = events[-1].response
    assert client.responses.retrieve(told.id).model_dump() == told.model_dump()


def test_nothing_is_kept_unasked(client):
    made = client.responses.create(input="Hello!", store=False, **ASKED)
    assert made.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_turns_go_on_from_what_was_said(client, elsewhere):
    """A turn with the id of the one before it is the turn with its whole history, and finds its prefix in the cache."""
    first = client.responses.create(input="My name is Ada. " + "I like long walks by the sea. " * 8, **ASKED)
    second = client.responses.create(input="Who am I?", previous_response_id=first.id, **ASKED)
    assert second.previous_response_id == first.id
    history = [
        {"role": "user", "content": "My name is Ada. " + "I like long walks by the sea. " * 8}, *first.output,
        {"role": "user", "content": "Who am I?"},
    ]
    whole = client.responses.create(input=history, store=False, **ASKED)
    assert whole.output_text == second.output_text
    assert whole.usage.input_tokens == second.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0
    third = elsewhere.responses.create(input="Thanks.", previous_response_id=second.id, **ASKED)
    assert third.usage.input_tokens > second.usage.input_tokens
    refers = [{"type": "item_reference", "id": item.id} for item in first.output]
    by_reference = client.responses.create(input=[history[0], *refers, history[-1]], **ASKED)
    assert by_reference.usage.input_tokens == whole.usage.input_tokens
    with pytest.raises(openai.NotFoundError, match="msg_nothing"):
        client.responses.create(input=[{"type": "item_reference", "id": "msg_nothing"}], **ASKED)
    client.responses.delete(first.id)
    for library in client, elsewhere:
        # Where the conversation is in memory, too.
        with pytest.raises(openai.BadRequestError, match=first.id):
            library.responses.create(input="And now?", previous_response_id=second.id, **ASKED)


def test_tokens_of_an_answer_are_not_made_again_from_its_text(client, elsewhere):
    """Random tokens within a grammar are seldom those that a tokenizer makes of their text; later turns find them in the cache."""
    told = lambda response: response.usage.input_tokens + response.usage.output_tokens
    wild = {**long_answer(), "temperature": 2, "max_output_tokens": 160}
    first = client.responses.create(**wild)
    second = client.responses.create(previous_response_id=first.id, **wild)
    third = client.responses.create(input="Go on.", previous_response_id=second.id, **ASKED)
    for before, after in ((first, second), (second, third)):
        # The last token is no input yet, and blocks of 16 tokens are kept.
        assert after.usage.input_tokens_details.cached_tokens >= (told(before) - 1) // 16 * 16 > 0
        assert after.usage.input_tokens > told(before)
    items = [{"role": "user", "content": "Go on."}, *first.output, {"role": "user", "content": "Go on."}]
    by_text = client.responses.create(input=items, store=False, **ASKED)
    assert by_text.usage.input_tokens < second.usage.input_tokens, "the text has fewer tokens"
    # Another server reads the tokens from the store.
    there = elsewhere.responses.create(input="Go on.", previous_response_id=second.id, **ASKED)
    assert (there.usage.input_tokens, there.output_text) == (third.usage.input_tokens, third.output_text)
    counted = client.responses.input_tokens.count(model=MODEL, input="Go on.", previous_response_id=second.id)
    assert counted.input_tokens == third.usage.input_tokens


def test_items_are_paged(client):
    input = [{"role": "user", "content": str(number)} for number in range(5)]
    made = client.responses.create(input=input, **ASKED)
    texts = lambda page: [item.content[0].text for item in page]
    assert texts(client.responses.input_items.list(made.id)) == ["4", "3", "2", "1", "0"]
    page = client.responses.input_items.list(made.id, order="asc", limit=2)
    assert page.has_more and texts(page.data) == ["0", "1"]
    assert texts(page) == ["0", "1", "2", "3", "4"], "the library follows the pages"


def test_conversations(client, elsewhere, stranger):
    made = client.conversations.create(
        metadata={"topic": "names"}, items=[{"role": "user", "content": "My name is Ada."}]
    )
    assert made.id.startswith("conv_") and made.metadata == {"topic": "names"}
    answer = elsewhere.responses.create(input="Who am I?", conversation=made.id, **ASKED)
    assert answer.conversation.id == made.id
    items = list(client.conversations.items.list(made.id, order="asc"))
    assert [item.role for item in items] == ["user", "user", "assistant"]
    assert items[-1].id == answer.output[0].id
    more = client.conversations.items.create(made.id, items=[{"role": "user", "content": "And?"}])
    assert client.conversations.items.retrieve(more.data[0].id, conversation_id=made.id).content[0].text == "And?"
    with pytest.raises(openai.NotFoundError):
        stranger.conversations.items.list(made.id)
    with pytest.raises(openai.NotFoundError):
        stranger.responses.create(input="?", conversation=made.id, **ASKED)
    client.conversations.items.delete(more.data[0].id, conversation_id=made.id)
    assert len(list(client.conversations.items.list(made.id))) == 3
    assert client.conversations.update(made.id, metadata={"topic": "more"}).metadata == {"topic": "more"}
    again = client.responses.create(input="Again?", previous_response_id=answer.id, **ASKED)
    assert again.usage.input_tokens > answer.usage.input_tokens
    assert client.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)
    with pytest.raises(openai.BadRequestError, match="conversation"):
        client.responses.create(input="?", conversation=made.id, previous_response_id=answer.id, **ASKED)


def test_a_background_response_is_polled_and_cancelled(client, elsewhere):
    begun = client.responses.create(input="Hello!", background=True, **ASKED)
    assert begun.status in ("queued", "in_progress") and begun.background
    done = ended(elsewhere, begun)
    assert done.status in ("completed", "incomplete") and done.output_text
    long = dict(model=MODEL, input="Tell a long story.", temperature=1, max_output_tokens=900)
    begun = client.responses.create(background=True, **long)
    assert elsewhere.responses.cancel(begun.id).status in ("cancelled", "completed", "incomplete")
    assert client.responses.retrieve(begun.id).status in ("cancelled", "completed", "incomplete")
    with pytest.raises(openai.BadRequestError, match="store"):
        client.responses.create(input="Hello!", background=True, store=False, **ASKED)


def test_a_stream_goes_on_behind_any_event_at_another_server(client, elsewhere):
    stream = client.responses.create(input="Hello!", background=True, stream=True, **ASKED)
    seen = []
    for event in stream:
        seen.append(event)
        if len(seen) == 5:
            break
    stream.close()
    id = seen[0].response.id
    rest = list(elsewhere.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number))
    numbers = [event.sequence_number for event in seen + rest]
    assert numbers == list(range(len(numbers)))
    assert rest[-1].type in ("response.completed", "response.incomplete")
    whole = client.responses.retrieve(id)
    deltas = "".join(event.delta for event in seen + rest if event.type == "response.output_text.delta")
    assert deltas == whole.output_text == rest[-1].response.output_text


def long_answer():
    """Parameters of a response that is long, however the dice fall."""
    flags = {"type": "array", "items": {"type": "boolean"}, "minItems": 300}
    schema = {"type": "object", "properties": {"a": flags}, "required": ["a"], "additionalProperties": False}
    long = {"format": {"type": "json_schema", "name": "long", "schema": schema}}
    return dict(model=MODEL, input="Go on.", temperature=1, max_output_tokens=900, text=long)


def test_a_background_response_outlives_its_server(start, database, keys, elsewhere, tmp_path):
    """Its process is killed while it answers; another one gives the same events to their end."""
    context = start("--database", database, "--ledger-journal", tmp_path / "journal")
    server = context.__enter__()
    try:
        with library(server, keys[0]) as client:
            stream = client.responses.create(
                background=True, stream=True, extra_body={"frequency_penalty": 0.5}, **long_answer()
            )
            seen = []
            for event in stream:
                seen.append(event)
                if len(seen) == 8:
                    break
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(60)
    finally:
        context.__exit__(None, None, None)
    id = seen[0].response.id
    assert elsewhere.responses.retrieve(id).status == "in_progress"
    rest = list(elsewhere.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number))
    numbers = [event.sequence_number for event in seen + rest]
    assert numbers == list(range(len(numbers)))
    deltas = "".join(event.delta for event in seen + rest if event.type == "response.output_text.delta")
    assert deltas == rest[-1].response.output_text == elsewhere.responses.retrieve(id).output_text


def test_a_revoked_key_ends_the_background_responses_of_a_dead_server(start, binary, database, elsewhere, tmp_path):
    """Another process that goes on with them reads their key again."""
    run = lambda *words: subprocess.run(
        [binary, "keys", *words, "--database", database], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()
    key = run("create", "--organisation", "acme", "--project", "first")
    context = start("--database", database, "--ledger-journal", tmp_path / "journal")
    server = context.__enter__()
    try:
        with library(server, key) as client:
            begun = client.responses.create(background=True, **long_answer())
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(60)
    finally:
        context.__exit__(None, None, None)
    run("revoke", key[:11])
    assert elsewhere.responses.retrieve(begun.id).status == "in_progress"
    response = ended(elsewhere, begun)
    assert (response.status, response.error.code) == ("failed", "server_error"), response
    assert "no longer valid" in response.error.message


def test_a_conversation_is_made_short(client):
    turns = [{"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": "Hello, Ada."}]
    short = client.responses.compact(model=MODEL, input=turns)
    assert short.object == "response.compaction"
    assert [item.type for item in short.output] == ["message", "compaction"]
    after = client.responses.create(input=[*short.output, {"role": "user", "content": "Who am I?"}], **ASKED)
    assert after.output_text and after.usage.input_tokens > 0
