"""Tools that the gateway calls, through OpenAI's official library, with real MCP servers of the official Python SDK."""

import json
import subprocess
import sys
import time
from pathlib import Path

import httpx
import openai
import pytest
from pydantic import TypeAdapter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ports import free_port  # noqa: E402
from replay import write_turns  # noqa: E402

CALCULATOR = Path(__file__).with_name("mcp_calculator.py")
TURNS = ["I add and shout.", "Now it breaks.", "All is well: the sum is 5!"]


def call(name, **arguments):
    return "<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + "</tool_call>"


def config(folder, **more):
    lines = [
        "[gateway.tools]",
        f'pins = "{folder}/pins.json"',
        *(f"{key} = {json.dumps(value)}" for key, value in more.items()),
        "[[gateway.tools.server]]",
        'name = "calc"',
        f'command = "{sys.executable}"',
        f'args = ["{CALCULATOR}"]',
        f'env = {{ CALLS = "{folder}/calls" }}',
        'sandbox = "none"',
        "[gateway.tools.server.limits]",
        "timeout_s = 20",
    ]
    path = folder / "throng.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tools")


@pytest.fixture(scope="module")
def hosted():
    """The calculator over HTTP."""
    port = free_port()
    process = subprocess.Popen([sys.executable, CALCULATOR, str(port)], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/mcp"
    for _ in range(600):
        try:
            httpx.get(url)
            break
        except httpx.TransportError:
            time.sleep(0.05)
    yield url
    process.terminate()
    process.wait(timeout=20)


@pytest.fixture(scope="module")
def url(start, binary, folder, hosted):
    """A server whose model calls two tools, then one that fails, and then says something."""
    turns = [
        TURNS[0] + call("calc__add", a=2, b=3) + call("calc__shout", text="hey"),
        TURNS[1] + call("calc__broken"),
        TURNS[2],
    ]
    model = folder / "scripted.gguf"
    write_turns(model, turns)
    path = config(folder, hosted_origins=[hosted.removesuffix("/mcp")])
    approved = subprocess.run([binary, "tools", "approve", "--config", path], capture_output=True, text=True, timeout=60)
    assert approved.returncode == 0 and "calc: 5 tools approved" in approved.stdout, approved.stderr
    key = subprocess.run(
        [binary, "keys", "create", "--database", folder / "store.db", "--organisation", "acme", "--project", "a"],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout.strip()
    with start(model, "--served-model-name", "scripted", "--config", path, "--database", folder / "store.db") as server:
        yield server.url, key


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=url[0] + "/v1", api_key=url[1], max_retries=0) as client:
        yield client


ASKED = dict(model="scripted", input="What is 2 plus 3?")
OWN = {"type": "mcp", "server_label": "calc"}


def kinds(response):
    return [item.type for item in response.output]


def error_of(item):
    """The error of a call; versions of the library before 3 leave it as it came."""
    return item.error if isinstance(item.error, dict) else item.error.to_dict()


def check_items(response):
    assert kinds(response) == ["mcp_list_tools", "message", "mcp_call", "mcp_call", "message", "mcp_call", "message"]
    listed, _, added, shouted, _, broken, said = response.output
    assert [tool.name for tool in listed.tools] == ["add", "shout", "broken", "nap", "reach"]
    assert listed.tools[0].input_schema["properties"].keys() == {"a", "b"}
    assert (added.name, added.server_label, added.output, added.status) == ("add", "calc", "5", "completed")
    assert (shouted.output, shouted.error) == ("HEY", None)
    assert broken.status == "failed" and broken.output is None and error_of(broken)["type"] == "mcp_tool_execution_error"
    assert "broken" in json.dumps(error_of(broken)["content"])
    assert said.content[0].text == TURNS[2] and response.output_text.endswith(TURNS[2])
    assert response.status == "completed" and response.tools[0].type == "mcp"


def test_tools_of_the_operator_whole_and_streamed(client, folder):
    whole = client.responses.create(tools=[OWN], **ASKED)
    check_items(whole)
    events = list(client.responses.create(tools=[OWN], stream=True, **ASKED))
    streamed = events[-1].response
    check_items(streamed)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    names = [event.type for event in events]
    begun = names.index("response.output_item.added")
    assert names[begun : begun + 4] == [
        "response.output_item.added", "response.mcp_list_tools.in_progress", "response.mcp_list_tools.completed",
        "response.output_item.done",
    ]
    of_call = [name for name in names if "mcp_call" in name and not name.endswith("arguments.delta")]
    assert of_call.count("response.mcp_call.in_progress") == of_call.count("response.mcp_call_arguments.done") == 3
    assert of_call.count("response.mcp_call.completed") == 2 and of_call.count("response.mcp_call.failed") == 1
    done = {event.item.id: event.item for event in events if event.type == "response.output_item.done"}
    assert [done[item.id] for item in streamed.output] == streamed.output
    deltas = "".join(event.delta for event in events if event.type == "response.mcp_call_arguments.delta")
    assert deltas == "".join(item.arguments for item in streamed.output if item.type == "mcp_call")
    usage = whole.usage
    assert usage == streamed.usage and usage.output_tokens > 20 and usage.input_tokens >= 3
    assert (folder / "calls").read_text().splitlines().count("add 2 3") == 2


@pytest.mark.skipif(openai.__version__.startswith("2."), reason="the types of openai 2 know errors of calls as texts only")
def test_events_and_items_are_those_of_the_library(client):
    adapter = TypeAdapter(openai.types.responses.ResponseStreamEvent)
    with client.responses.with_streaming_response.create(tools=[OWN], stream=True, **ASKED) as raw:
        lines = [line.removeprefix("data: ") for line in raw.iter_lines() if line.startswith("data: {")]
    for line in lines:
        adapter.validate_json(line)
    assert len(lines) > 40


def test_a_server_of_the_request(client, hosted):
    server = {
        "type": "mcp", "server_label": "calc", "server_url": hosted, "authorization": "token", "headers": {"x-a": "secret"},
        "require_approval": "never", "allowed_tools": ["add", "shout", "broken"],
    }
    response = client.responses.create(tools=[server], **ASKED)
    assert [tool.name for tool in response.output[0].tools] == ["add", "shout", "broken"]
    assert [item.status for item in response.output if item.type == "mcp_call"] == ["completed", "completed", "failed"]
    kept = client.responses.retrieve(response.id)
    assert kept.output == response.output
    assert "secret" not in kept.to_json() and "token" not in kept.to_dict()["tools"][0]


def test_servers_that_are_not_allowed_are_refused_by_name(client):
    for server, param in [
        ({"server_url": "http://127.0.0.1:1/mcp"}, "tools[0].server_url"),
        ({"server_url": "http://169.254.169.254/latest"}, "tools[0].server_url"),
        ({"server_label": "other"}, "tools[0].server_label"),
        ({"connector_id": "connector_gmail"}, "tools[0].connector_id"),
    ]:
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(tools=[{**OWN, **server}], **ASKED)
        assert refused.value.param == param, refused.value


def test_a_conversation_goes_on_with_its_tools(client, folder):
    first = client.responses.create(tools=[OWN], **ASKED)
    second = client.responses.create(
        model="scripted", input="And once more?", previous_response_id=first.id, tools=[OWN],
    )
    # The list is in the conversation already, and the model has said all it has to say.
    assert kinds(second) == ["message"] and second.output_text == TURNS[2]
    items = client.responses.input_items.list(second.id)
    assert [item.type for item in items.data] == ["message"]
    sent_back = [{"role": "user", "content": ASKED["input"]}, *first.output, {"role": "user", "content": "And?"}]
    third = client.responses.create(model="scripted", input=sent_back, tools=[OWN])
    assert kinds(third) == ["message"]


def test_a_call_waits_for_the_clients_approval(client, folder):
    waits = {**OWN, "require_approval": {"always": {"tool_names": ["shout"]}, "never": {"tool_names": ["add", "broken"]}}}
    first = client.responses.create(tools=[waits], **ASKED)
    assert kinds(first) == ["mcp_list_tools", "message", "mcp_call", "mcp_approval_request"]
    asked = first.output[-1]
    assert (asked.name, asked.server_label, json.loads(asked.arguments)) == ("shout", "calc", {"text": "hey"})
    n_shouts = (folder / "calls").read_text().count("shout hey")
    answer = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}
    second = client.responses.create(model="scripted", input=[answer], previous_response_id=first.id, tools=[waits])
    assert kinds(second)[0] == "mcp_call"
    assert (second.output[0].approval_request_id, second.output[0].output) == (asked.id, "HEY")
    assert (folder / "calls").read_text().count("shout hey") == n_shouts + 1
    denied = {**answer, "approve": False, "reason": "too loud"}
    third = client.responses.create(model="scripted", input=[denied], previous_response_id=first.id, tools=[waits])
    assert "mcp_call" in kinds(third) and third.output[1].name == "broken"
    with pytest.raises(openai.BadRequestError):
        client.responses.create(
            model="scripted", input=[{**answer, "approval_request_id": "mcpr_none"}], previous_response_id=first.id, tools=[waits],
        )


def test_calls_have_the_bound_of_the_request(client):
    response = client.responses.create(tools=[OWN], max_tool_calls=1, **ASKED)
    calls = [item for item in response.output if item.type == "mcp_call"]
    assert [item.status for item in calls] == ["completed", "failed"]
    assert (error_of(calls[1])["type"], error_of(calls[1])["code"]) == ("http_error", 429)


def test_tools_in_the_background(client):
    response = client.responses.create(tools=[OWN], background=True, **ASKED)
    for _ in range(600):
        response = client.responses.retrieve(response.id)
        if response.status not in ("queued", "in_progress"):
            break
        time.sleep(0.05)
    check_items(response)


def test_calls_are_in_the_explanation_and_in_the_ledger(client, url, binary, folder):
    raw = client.responses.with_raw_response.create(tools=[OWN], **ASKED)
    request_id = raw.headers["x-request-id"]
    for _ in range(200):
        found = httpx.get(f"{url[0]}/explain/{request_id}", headers={"authorization": f"Bearer {url[1]}"})
        if found.status_code == 200:
            break
        time.sleep(0.05)
    tools = found.json()["tools"]
    assert sorted((tool["server"], tool["tool"], tool["status"]) for tool in tools) == [
        ("calc", "add", "ok"), ("calc", "broken", "tool_error"), ("calc", "shout", "ok"),
    ]
    assert all(tool["ms"] > 0 for tool in tools)
    usage = lambda: subprocess.run(
        [binary, "usage", "--database", folder / "store.db", "--by", "model"], capture_output=True, text=True, timeout=60,
    ).stdout
    for _ in range(100):
        if "tool:calc/broken" in usage():
            break
        time.sleep(0.1)
    assert "tool:calc/add" in usage() and "tool:calc/broken" in usage()


def test_a_client_that_leaves_cancels_its_tools(start, folder, url):
    """The server stops waiting for a call whose client has gone: another one finds its place free."""
    model = folder / "napper.gguf"
    write_turns(model, [call("calc__nap", seconds=15), "Awake."])
    path = folder / "one.toml"
    path.write_text(config(folder).read_text() + "concurrency = 1\nqueue = 0\n")
    with start(model, "--served-model-name", "scripted", "--config", path) as server:
        ask = {"model": "scripted", "input": "Sleep.", "tools": [OWN], "stream": True}
        began = time.monotonic()
        with httpx.stream("POST", server.url + "/v1/responses", json=ask, timeout=60) as response:
            for line in response.iter_lines():
                if line == "event: response.mcp_call_arguments.done":
                    break
        # The place is given back once the server sees that the client has gone, long before the nap ends.
        while True:
            answer = httpx.post(server.url + "/v1/responses", json={**ask, "stream": False, "max_tool_calls": 1}, timeout=60).json()
            nap = next(item for item in answer["output"] if item["type"] == "mcp_call")
            if (nap["error"] or {}).get("code") != 429:
                break
            assert time.monotonic() - began < 15, "the place was never given back"
            time.sleep(0.1)
        assert nap["status"] in ("completed", "failed")


def test_a_changed_description_is_refused(start, folder, url):
    pins = json.loads((folder / "pins.json").read_text())
    pins["servers"]["calc"]["add"] = "0" * 64
    (folder / "other-pins.json").write_text(json.dumps(pins))
    with start(folder / "scripted.gguf", "--served-model-name", "scripted", "--config", folder / "throng.toml",
               "--tool-pins", folder / "other-pins.json") as server:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            with pytest.raises(openai.PermissionDeniedError) as refused:
                client.responses.create(tools=[OWN], **ASKED)
    assert "the description of 'add' has changed since it was approved" in refused.value.message


def test_a_server_without_tools_refuses_them_by_name(start, folder, url):
    with start(folder / "scripted.gguf", "--served-model-name", "scripted") as server:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            with pytest.raises(openai.BadRequestError) as refused:
                client.responses.create(tools=[OWN], **ASKED)
    assert refused.value.param == "tools[0].type"


UNSHARE = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--mount-proc", "--fork", "true"]


@pytest.mark.skipif(subprocess.run(UNSHARE, capture_output=True).returncode != 0, reason="no namespaces here")
def test_a_sandbox_has_no_network(binary, folder, hosted):
    port = hosted.split(":")[2].split("/")[0]
    for sandbox, words in ("none", "reached"), ("unshare", "unreachable"):
        path = folder / f"{sandbox}.toml"
        path.write_text(config(folder).read_text().replace('sandbox = "none"', f'sandbox = "{sandbox}"'))
        run = subprocess.run(
            [binary, "tools", "call", "calc", "reach", json.dumps({"port": int(port)}), "--config", path],
            capture_output=True, text=True, timeout=60,
        )
        assert run.stdout.startswith(words), run


def test_a_sandbox_that_cannot_be_had_is_refused_by_name(binary, folder):
    path = folder / "container.toml"
    path.write_text(config(folder).read_text().replace('sandbox = "none"', 'sandbox = "docker:no/such-image"'))
    run = subprocess.run([binary, "serve", "--port", "0", "--config", path], capture_output=True, text=True, timeout=60)
    assert run.returncode != 0 and "the tool server 'calc' is refused: its sandbox 'docker:no/such-image'" in run.stderr, run


def test_a_command_without_a_sandbox_is_refused_at_the_start(binary, folder):
    path = folder / "unsafe.json"
    path.write_text(json.dumps({"mcpServers": {"code": {"command": sys.executable, "args": [str(CALCULATOR)]}}}))
    run = subprocess.run(
        [binary, "serve", "--port", "0", "--mcp-config", path, "--tool-pins", folder / "pins.json"],
        capture_output=True, text=True, timeout=60,
    )
    assert run.returncode != 0 and "'code': runs a command, which is refused without a sandbox" in run.stderr, run
