"""Sockets at their limits: descriptors that run out, clients that close, clients that close one direction only."""

import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import time
import urllib.parse
import urllib.request

import pytest

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


def test_requests_of_closed_clients_end(server):
    before = generated(server)
    for _ in range(50):
        with socket.create_connection(address_of(server)) as client:
            client.sendall(request_bytes(max_tokens=200))
            # Once the request has been read, the end that follows may mean that the client waits.
            time.sleep(0.02)
    deadline = time.monotonic() + PATIENCE_S
    while load(server) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert load(server) == 0
    assert generated(server) - before < 50 * 200 / 4


@pytest.fixture
def low_soft_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_soft_limit_is_raised_and_running_out_is_told(start, low_soft_limit):
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


def test_a_thousand_connections_wait_for_a_server_that_is_held_up(start):
    with start() as server, contextlib.ExitStack() as clients:
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
