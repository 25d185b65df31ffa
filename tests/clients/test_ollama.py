"""Ollama's official libraries for Python and JavaScript against `/api`."""

import json
import shutil
import subprocess
import time
from pathlib import Path

import httpx
import hub
import ollama
import ports
import pytest
import replay

from conftest import MODEL, NODE

ROOT = Path(__file__).resolve().parents[2]
STARTER = ROOT / "starter/models/throng-starter.gguf"

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


def test_embeddings_have_the_length_one(embedder_url):
    client = ollama.Client(embedder_url.removesuffix("/v1"))
    answer = client.embed(model="bert-cls", input=["the quick fox", "a lazy dog"])
    assert len(answer.embeddings) == 2 and answer.prompt_eval_count > 0 and answer.total_duration > 0
    assert answer.embeddings[0] != answer.embeddings[1]
    old = client.embeddings(model="bert-cls", prompt="the quick fox")
    assert list(old.embedding) == pytest.approx(list(answer.embeddings[0]), abs=1e-5)
    short = client.embed(model="bert-cls", input="the quick fox", dimensions=4)
    assert len(short.embeddings[0]) == 4
    # A text that the context has no room for is cut, unless the request says otherwise.
    long = "the quick brown fox " * 400
    assert len(client.embed(model="bert-cls", input=long).embeddings) == 1
    with pytest.raises(ollama.ResponseError, match="maximum context length"):
        client.embed(model="bert-cls", input=long, truncate=False)
    with pytest.raises(ollama.ResponseError, match="gives vectors"):
        client.chat(model="bert-cls", messages=HELLO)


def test_a_model_that_generates_has_no_embeddings(client):
    with pytest.raises(ollama.ResponseError, match="generates text"):
        client.embed(model=MODEL, input="a")


def test_requests_without_a_prompt_load_and_unload(client):
    assert client.generate(model=MODEL).done_reason == "load"
    assert client.chat(model=MODEL, messages=[], keep_alive=0).done_reason == "unload"
    with pytest.raises(ollama.ResponseError, match="nobody"):
        client.generate(model="nobody")
    # The only model is always there.
    assert MODEL in [model.model for model in client.ps().models]


def test_models_on_demand_stay_as_long_as_a_request_says(start, tmp_path):
    lines = ["[model]\nkv_cache_memory_bytes = 16777216\n[gateway.on_demand]\nidle_unload_s = 600"]
    for name in ("one", "two"):
        shutil.copy(STARTER, tmp_path / f"{name}.gguf")
        lines.append(f'[[on_demand]]\nname = "{name}"\nmodel = "{tmp_path / name}.gguf"')
    (tmp_path / "throng.toml").write_text("\n".join(lines))
    with start("--config", tmp_path / "throng.toml") as server:
        client = ollama.Client(server.url)
        assert {model.model for model in client.list().models} == {"one", "two"}
        running = lambda: {model.model for model in client.ps().models}
        assert running() == set()
        client.generate(model="one", keep_alive="10m")
        client.generate(model="two", prompt="Hello", keep_alive="1s", options={"num_predict": 2})
        assert running() == {"one", "two"}
        deadline = time.monotonic() + 60
        while running() != {"one"}:
            assert time.monotonic() < deadline, "two stays"
            time.sleep(0.2)
        client.generate(model="one", keep_alive=0)
        while running():
            assert time.monotonic() < deadline, "one stays"
            time.sleep(0.2)


@pytest.fixture()
def little_hub(tmp_path, monkeypatch):
    """A hub with one small model, and a folder for the cache."""
    replay.write(tmp_path / "says.gguf", ["Hello from the hub."])
    with hub.running("org/says", {"says.gguf": (tmp_path / "says.gguf").read_bytes(), "README.md": b"#"}) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield tmp_path


def test_models_are_pulled_where_the_operator_allows_it(start, little_hub):
    with start("--max-pulled-bytes", "100MiB") as server:
        client = ollama.Client(server.url)
        lines = list(client.pull("org/says", stream=True))
        assert (lines[0].status, lines[-1].status) == ("pulling manifest", "success")
        assert client.pull("hf.co/org/says").status == "success"
        assert "org/says" in [model.model for model in client.list().models]
        said = client.chat(model="org/says", messages=HELLO, options={"temperature": 0})
        assert said.message.content == "Hello from the hub."
        for name, status in [("llama3.2", 400), ("org/absent", 404), ("/etc/passwd", 400), ("https://127.0.0.1/x.gguf", 400)]:
            with pytest.raises(ollama.ResponseError) as error:
                client.pull(name)
            assert error.value.status_code == status, error.value


def test_a_pull_has_a_bound_and_is_the_operator_s(start, little_hub):
    with start("--max-pulled-bytes", "100KiB", "--api-key", "client", "--admin-key", "operator") as server:
        as_client, as_operator = [
            ollama.Client(server.url, headers={"Authorization": f"Bearer {key}"}) for key in ("client", "operator")
        ]
        with pytest.raises(ollama.ResponseError) as error:
            as_client.pull("org/says")
        assert error.value.status_code == 403
        with pytest.raises(ollama.ResponseError, match="--max-pulled-bytes leaves") as error:
            as_operator.pull("org/says")
        assert error.value.status_code == 403
        assert not list((little_hub / "home").rglob("*.gguf"))


def test_what_changes_models_is_refused(client):
    with pytest.raises(ollama.ResponseError, match="--max-pulled-bytes") as error:
        client.pull("org/says")
    assert error.value.status_code == 403
    for call in (
        lambda: client.delete(MODEL),
        lambda: client.copy(MODEL, "other"),
        lambda: client.create(model="other", from_=MODEL),
        lambda: client.push(MODEL),
    ):
        with pytest.raises(ollama.ResponseError) as error:
            call()
        assert error.value.status_code == 400, error.value
    with pytest.raises(ollama.ResponseError, match="throng rm"):
        client.delete(MODEL)


def test_the_port_of_ollama_is_answered_too(start):
    port = ports.free_port()
    with start(f"--ollama={port}") as server:
        address = f"http://127.0.0.1:{port}"
        assert httpx.get(address).text == "Ollama is running"
        assert httpx.head(address).status_code == 200
        assert "<!doctype html>" in httpx.get(server.url).text.lower()
        assert httpx.get(f"{address}/v1/models").json() == httpx.get(f"{server.url}/v1/models").json()
        client = ollama.Client(address)
        assert client.generate(model=MODEL, prompt="Hello!", options={"temperature": 0, "num_predict": 5}).eval_count > 0


SCRIPT = """
import { Ollama } from "ollama";
const client = new Ollama({ host: process.argv[2] });
const model = process.argv[3], messages = [{ role: "user", content: "Hello!" }], options = { temperature: 0, num_predict: 40 };
const whole = await client.chat({ model, messages, options });
let text = "";
for await (const part of await client.chat({ model, messages, options, stream: true })) text += part.message.content;
const names = (await client.list()).models.map((entry) => entry.model);
const failed = await client.chat({ model: "nobody", messages }).catch((error) => error.status_code);
console.log(JSON.stringify({ same: text === whole.message.content, names, failed, version: (await client.version()).version }));
"""


def test_the_library_for_javascript(server, node_folder):
    (node_folder / "ollama_script.mjs").write_text(SCRIPT)
    done = subprocess.run(
        [NODE, "ollama_script.mjs", server.url, MODEL], cwd=node_folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["same"], told["names"], told["failed"]) == (True, [MODEL], 404)
