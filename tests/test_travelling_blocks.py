"""Keys and values that travel between workers: a conversation that moves to another worker goes on with what it had, and whatever
happens to the worker that has it, the answers are the same."""

import contextlib
import os
import re
import signal
import socket
import threading
import time

import httpx
import pytest
from ports import free_port
from test_foreign_engines import process, wait_for

TOKEN = {"THRONG_WORKER_TOKEN": "the-token"}
OPERATOR = "operator-0123456789abcdef"


def prompt(number, n_words=150):
    words = " ".join(f"word{(i * 7 + number) % 50}" for i in range(n_words))
    return [{"role": "user", "content": f"Story {number}: {words}"}]


class Proxy:
    """A TCP proxy before a worker. What `on_answer` makes of the bytes that the worker sends goes to those who connected after
    `arm`; it may damage them, or end the connection with `None`."""

    def __init__(self, port):
        self.target, self.on_answer = port, None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, on_answer):
        self.on_answer = on_answer

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                # The worker does not listen yet, or has ended.
                client.close()
                continue
            threading.Thread(target=self._pass, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, self.on_answer), daemon=True).start()

    @staticmethod
    def _pass(source, target, change):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if change is not None and (data := change(data)) is None:
                    break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.listener.close()


class Fleet:
    """A gateway with two workers, named `one` and `two`, for which computing takes long; `one` stands behind a proxy."""

    def __init__(self, binary, folder, stack, *arguments, keys=()):
        self.ports = [free_port(), free_port()]
        commands = [
            [binary, "worker", "--listen", f"127.0.0.1:{port}", "--threads", "1", "--isa", "scalar", *arguments] for port in self.ports
        ]
        self.workers = [stack.enter_context(process(command, **TOKEN)) for command in commands]
        self.proxy = Proxy(self.ports[0])
        stack.callback(self.proxy.close)
        settings = folder / "fleet.toml"
        replicas = zip(["one", "two"], [self.proxy.port, self.ports[1]])
        replica = '[[replica]]\nname = "{}"\nurl = "throng://127.0.0.1:{}"\n'
        settings.write_text("".join(replica.format(name, port) for name, port in replicas))
        port = free_port()
        self.operator = self.head([OPERATOR] if keys else [])
        secrets = {"THRONG_API_KEY": ",".join(keys), "THRONG_ADMIN_KEY": OPERATOR} if keys else {}
        stack.enter_context(process([binary, "gateway", "--port", port, "--config", settings], **TOKEN, **secrets))
        self.url = f"http://127.0.0.1:{port}"
        wait_for(lambda: [one["state"] for one in self.known()] == ["ready", "ready"], "both workers are ready")

    def known(self):
        """What the gateway knows of its workers."""
        return httpx.get(f"{self.url}/fleet", headers=self.operator).json()["workers"]

    @staticmethod
    def head(key):
        return {"authorization": f"Bearer {key[0]}"} if key else {}

    def ask(self, number, worker, max_tokens=8, key=(), messages=None):
        """The text of an answer by a worker, its cached tokens, its prompt tokens, and the id of the request."""
        messages = messages or prompt(number)
        body = {"model": "throng-starter", "messages": messages, "max_tokens": max_tokens, "temperature": 0}
        head = {"x-throng-replica": worker, **self.head(key)}
        answer = httpx.post(f"{self.url}/v1/chat/completions", json=body, headers=head, timeout=120)
        assert answer.status_code == 200, answer.text
        made = answer.json()
        cached = (made["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return made["choices"][0]["message"]["content"], cached, made["usage"]["prompt_tokens"], answer.headers["x-request-id"]

    def metric(self, name):
        text = httpx.get(f"{self.url}/metrics", headers=self.operator).text
        return sum(float(value) for value in re.findall(rf"^{name}{{[^}}]*}} (\S+)", text, re.M))

    def known_blocks(self):
        """How many blocks of worker one the gateway knows."""
        return next(one["known_blocks"] for one in self.known() if one["name"] == "one")

    def ask_one(self, number, key=(), **options):
        """Lets worker one answer, and waits until the gateway knows what it has."""
        before = self.known_blocks()
        first = self.ask(number, "one", key=key, **options)
        wait_for(lambda: self.known_blocks() >= before + first[2] // 16, "the gateway knows the blocks")
        return first

    def ask_both(self, number, **options):
        """Lets worker one answer, then worker two."""
        return self.ask_one(number, **options), self.ask(number, "two", **options)


@pytest.fixture
def fleet(binary, tmp_path):
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **options: Fleet(binary, tmp_path, stack, *arguments, **options)


def test_a_conversation_that_moves_is_not_computed_again(fleet):
    fleet = fleet()
    for number in range(3):
        (text, cached, n_prompt, _), moved = fleet.ask_both(number)
        assert cached < 64 and n_prompt > 300
        assert moved[0] == text
        assert n_prompt - moved[1] <= 0.05 * n_prompt, moved
        explained = httpx.get(f"{fleet.url}/explain/{moved[3]}").json()
        assert [one["from"] for one in explained["pulled"]] == [f"throng://127.0.0.1:{fleet.proxy.port}"], explained
        assert 0.9 * n_prompt < explained["pulled"][0]["tokens"] <= n_prompt, explained
    wait_for(lambda: fleet.metric("throng_kv_blocks_pulled_total") > 0, "the counters come with a heartbeat")
    wait_for(lambda: fleet.metric("throng_kv_blocks_served_total") >= fleet.metric("throng_kv_blocks_pulled_total"), "served")
    assert fleet.metric("throng_kv_pulled_bytes_total") > 0
    # The next turn, whose beginning includes the answer, moves back.
    text = moved[0]
    turns = [*prompt(2), {"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]
    back = fleet.ask(2, "one", messages=turns)
    assert back[0] == fleet.ask(2, "two", messages=turns)[0]


def test_a_worker_may_be_told_not_to_exchange(fleet):
    fleet = fleet("--exchange-blocks", "off")
    first, moved = fleet.ask_both(1)
    assert (moved[0], moved[1] < 64) == (first[0], True)
    assert fleet.metric("throng_kv_blocks_pulled_total") == 0


def test_damaged_bytes_are_computed_again(fleet):
    fleet = fleet()
    first = fleet.ask_one(1)

    def damage(data):
        # Bytes of blocks come in large pieces.
        return data[:200] + bytes([data[200] ^ 0x10]) + data[201:] if len(data) > 1000 else data

    fleet.proxy.arm(damage)
    moved = fleet.ask(1, "two")
    assert moved[0] == first[0] and moved[1] < 0.95 * moved[2]
    wait_for(lambda: fleet.metric("throng_kv_block_pulls_failed_total") > 0, "a failed pull")


def test_a_worker_that_falls_silent_while_it_gives_costs_little_time(fleet):
    fleet = fleet()
    first = fleet.ask_one(1)
    passed = []

    def silence(data):
        passed.append(len(data))
        return b"" if sum(passed) > 20_000 else data

    fleet.proxy.arm(silence)
    began = time.monotonic()
    moved = fleet.ask(1, "two")
    print(f"{time.monotonic() - began:.2f} s with a silent worker")
    assert moved[0] == first[0] and sum(passed) > 20_000


def test_a_worker_that_dies_while_it_gives_changes_no_answer(fleet):
    fleet = fleet()
    first = fleet.ask_one(1)
    passed = []

    def kill(data):
        passed.append(len(data))
        if sum(passed) < 20_000:
            return data
        os.kill(fleet.workers[0].pid, signal.SIGKILL)
        return None

    fleet.proxy.arm(kill)
    moved = fleet.ask(1, "two")
    assert moved[0] == first[0] and sum(passed) >= 20_000
    assert fleet.workers[0].wait(60) == -signal.SIGKILL


def test_tenants_take_nothing_over_from_each_other(fleet):
    keys = ["key-of-tenant-a-0123456789", "key-of-tenant-b-0123456789"]
    fleet = fleet(keys=keys)
    first = fleet.ask_one(1, key=keys[:1])
    foreign = fleet.ask(1, "two", key=keys[1:])
    assert foreign[0] == first[0] and foreign[1] < 64, foreign
    again = fleet.ask_one(2, key=keys[1:])
    own = fleet.ask(2, "two", key=keys[1:])
    assert own[0] == again[0] and own[2] - own[1] <= 0.05 * own[2], own
