"""Sockets: running out of descriptors, clients that close, clients that close one direction only."""

import contextlib
import http.client
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request

import httpx
import pytest
import requests

PATIENCE_S = 60


def address_of(server):
    parts = urllib.parse.urlsplit(server.url)
    return parts.hostname, parts.port


def request_bytes(**fields):
    body = {"model": "throng-starter", "prompt": "Once", "ignore_eos": True, "temperature": 0, **fields}
    text = json.dumps(body)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(text)}\r\n"
    return (head + "content-type: application/json\r\n\r\n" + text).encode()


def generated(server):
    with urllib.request.urlopen(server.url + "/metrics", timeout=PATIENCE_S) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("vllm:generation_tokens_total"):
                return float(line.split()[-1])
    return 0.0


def load(server):
    with urllib.request.urlopen(server.url + "/load", timeout=PATIENCE_S) as answer:
        return json.load(answer)["server_load"]


def test_a_standard_client_reads_an_answer_whose_first_bytes_came_early(server):
    connection = http.client.HTTPConnection(*address_of(server), timeout=PATIENCE_S)
    connection.connect()
    connection.sock.sendall(request_bytes(max_tokens=200))
    connection.sock.shutdown(socket.SHUT_WR)
    answer = http.client.HTTPResponse(connection.sock, method="POST")
    answer.begin()
    assert answer.status == 200
    assert json.loads(answer.read())["usage"]["completion_tokens"] == 200


QUESTION = {"model": "throng-starter", "prompt": "Once", "ignore_eos": True, "temperature": 0, "max_tokens": 60}


def words_of(text):
    """The text of a stream of events, which must be complete."""
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


@pytest.fixture(scope="module")
def words(server):
    """The answer that every client must get."""
    answer = httpx.post(server.url + "/v1/completions", json=QUESTION, timeout=PATIENCE_S)
    return answer.json()["choices"][0]["text"]


def test_httpx_keeps_its_connection(server, words):
    url = server.url + "/v1/completions"
    with httpx.Client(timeout=PATIENCE_S) as client:
        sockets = set()
        for _ in range(3):
            answer = client.post(url, json=QUESTION)
            assert answer.json()["choices"][0]["text"] == words
            sockets.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
            with client.stream("POST", url, json={**QUESTION, "stream": True}) as answer:
                assert words_of(answer.read().decode()) == words
                sockets.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
    assert len(sockets) == 1


def test_requests_keeps_its_connection(server, words):
    url = server.url + "/v1/completions"
    with requests.Session() as client:
        for _ in range(3):
            answer = client.post(url, json=QUESTION, timeout=PATIENCE_S)
            assert answer.json()["choices"][0]["text"] == words
            answer = client.post(url, json={**QUESTION, "stream": True}, stream=True, timeout=PATIENCE_S)
            assert words_of("\n".join(answer.iter_lines(decode_unicode=True))) == words
        pools = client.get_adapter(url).poolmanager.pools
        assert [pools.get(key).num_connections for key in pools.keys()] == [1]


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
@pytest.mark.parametrize("flags", [["--http1.1"], ["--http1.0"], ["--http2-prior-knowledge"], ["-H", "expect: 100-continue"]])
def test_curl_with_each_http_version(server, words, flags):
    def ask(*flags, **more):
        line = ["curl", "-sS", "--fail", "--max-time", str(PATIENCE_S), *flags]
        line += ["--json", json.dumps({**QUESTION, **more}), server.url + "/v1/completions"]
        return subprocess.run(line, capture_output=True, check=True, text=True).stdout

    assert json.loads(ask(*flags))["choices"][0]["text"] == words
    assert words_of(ask("-N", *flags, stream=True)) == words


@pytest.mark.skipif(not shutil.which("node"), reason="Node is not installed")
def test_fetch_in_node(server, words):
    script = """
        const [url, question] = process.argv.slice(1);
        const headers = {"content-type": "application/json"};
        for (const stream of [false, true, false]) {
            const body = JSON.stringify({...JSON.parse(question), stream});
            console.log(JSON.stringify(await (await fetch(url, {method: "POST", headers, body})).text()));
        }"""
    line = ["node", "--input-type=module", "-e", script, server.url + "/v1/completions", json.dumps(QUESTION)]
    said = subprocess.run(line, capture_output=True, check=True, text=True, timeout=PATIENCE_S).stdout
    first, streamed, last = map(json.loads, said.splitlines())
    assert json.loads(first)["choices"][0]["text"] == words_of(streamed) == words
    assert json.loads(last)["choices"][0]["text"] == words


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_half_closed_client_gets_the_whole_answer(server, words, version, stream):
    """Like `nc -N` and socat: the client's side is closed after the request."""
    with socket.create_connection(address_of(server), timeout=PATIENCE_S) as client:
        request = request_bytes(max_tokens=QUESTION["max_tokens"], stream=stream).replace(b"HTTP/1.1", b"HTTP/" + version.encode())
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        answer = http.client.HTTPResponse(client, method="POST")
        answer.begin()
        text = answer.read().decode()
    assert (words_of(text) if stream else json.loads(text)["choices"][0]["text"]) == words


def test_requests_of_closed_clients_end(server):
    before = generated(server)
    clients, choices, max_tokens = 50, 16, 900
    for _ in range(clients):
        with socket.create_connection(address_of(server)) as client:
            client.sendall(request_bytes(max_tokens=max_tokens, n=choices))
            # Once the request has been read, a half-close may mean that the client waits for the answer.
            time.sleep(0.02)
    deadline = time.monotonic() + PATIENCE_S
    while load(server) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert load(server) == 0
    # All answers are 720,000 tokens. A server makes some until it notices that a socket is closed: in 1.3 s, a fast one 15,000.
    assert generated(server) - before < clients * choices * max_tokens / 4


@pytest.fixture
def low_soft_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_soft_limit_is_raised_and_running_out_is_reported(start, low_soft_limit):
    with start() as server:
        pid = server.process.pid
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] == low_soft_limit
        n_open = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (n_open + 8, low_soft_limit))
        with contextlib.ExitStack() as clients:
            held = [clients.enter_context(socket.create_connection(address_of(server))) for _ in range(8)]
            one_more = clients.enter_context(socket.create_connection(address_of(server)))
            one_more.settimeout(PATIENCE_S)
            one_more.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            refusal = b""
            while piece := one_more.recv(4096):
                refusal += piece
            assert refusal.startswith(b"HTTP/1.1 503 "), refusal
            assert json.loads(refusal.split(b"\r\n\r\n")[1])["error"]["code"] == "too_many_connections"
            held[0].sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert held[0].recv(4096).startswith(b"HTTP/1.1 200 ")
        with urllib.request.urlopen(server.url + "/health", timeout=PATIENCE_S) as answer:
            assert answer.status == 200


def test_a_thousand_connections_wait_for_a_stopped_server(start):
    with start() as server, contextlib.ExitStack() as clients:
        # Its first answer shows that it listens with its own backlog.
        with urllib.request.urlopen(server.url + "/health", timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        server.process.send_signal(signal.SIGSTOP)
        try:
            for _ in range(1000):
                client = clients.enter_context(socket.socket())
                client.settimeout(PATIENCE_S)
                client.connect(address_of(server))
        finally:
            server.process.send_signal(signal.SIGCONT)
        client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
