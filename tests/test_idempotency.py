"""Gateways killed while they answer requests with an `Idempotency-Key`: whoever asks another one gets one answer, and the ledger is exact.

Quick by default; `THRONG_GATEWAY_KILLS=200` with pytest kills so often. With `THRONG_TEST_DATABASE=postgres://…` over that database instead
of a SQLite file, and with `THRONG_TEST_REDIS=redis://…` with shared limits.
"""

import os
import random
import signal
import sqlite3
import subprocess
import threading
import time

import httpx

N_KILLS = int(os.environ.get("THRONG_GATEWAY_KILLS", "2"))
N_CLIENTS = 3
PATIENCE_S = 120


class Pair:
    """Two servers of one database, of which one at a time is killed and started again."""

    def __init__(self, start, database, folder):
        redis = os.environ.get("THRONG_TEST_REDIS")
        shared = ["--database", database, *(["--redis", redis] if redis else [])]
        self.make = lambda i: start(*shared, "--ledger-journal", folder / f"journal-{i}")
        self.contexts = [self.make(0), self.make(1)]
        self.servers = [context.__enter__() for context in self.contexts]

    def kill(self, i):
        self.servers[i].process.send_signal(signal.SIGKILL)
        self.servers[i].process.wait(60)
        self.contexts[i] = self.make(i)
        self.servers[i] = self.contexts[i].__enter__()

    def stop(self):
        for context in self.contexts:
            context.__exit__(None, None, None)


class Asking(threading.Thread):
    """Asks one question after the other, each under a key of its own, until it has been answered by one of the servers."""

    def __init__(self, pair, key, number):
        super().__init__(daemon=True)
        self.pair, self.key, self.number, self.answers, self.ends = pair, key, number, {}, False
        self.fault = None

    def run(self):
        try:
            while not self.ends:
                self.ask(f"{self.number}-{len(self.answers)}")
        except Exception as fault:
            self.fault = fault

    def ask(self, name):
        draws = random.Random(name)
        body = {
            "model": "throng-starter",
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": draws.randint(5, 60),
            "ignore_eos": True,
            "temperature": 1,
            "stream": draws.random() < 0.5,
        }
        self.answers[name] = body, self.answer(name, body)

    def answer(self, name, body):
        headers = {"authorization": f"Bearer {self.key}", "idempotency-key": name}
        end = time.monotonic() + PATIENCE_S
        for attempt in range(10_000):
            assert time.monotonic() < end, f"{name} is not answered"
            server = self.pair.servers[(self.number + attempt) % 2]
            try:
                url = f"{server.url}/v1/chat/completions"
                answer = httpx.post(url, json=body, headers=headers, timeout=60)
            except httpx.HTTPError:
                time.sleep(0.05)
                continue
            if answer.status_code in (409, 503):
                time.sleep(0.2)
                continue
            assert answer.status_code == 200, answer.text
            if not body["stream"] or answer.text.endswith("data: [DONE]\n\n"):
                return answer.content
            time.sleep(0.05)


def test_kills_of_gateways_cost_nobody_an_answer(binary, start, tmp_path):
    database = os.environ.get("THRONG_TEST_DATABASE") or str(tmp_path / "keys.db")
    command = [binary, "keys", "create", "--database", database]
    key = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    pair = Pair(start, database, tmp_path)
    try:
        clients = [Asking(pair, key, number) for number in range(N_CLIENTS)]
        for client in clients:
            client.start()
        for number in range(N_KILLS):
            time.sleep(random.uniform(0.2, 1.0))
            n_answers = [len(client.answers) for client in clients]
            pair.kill(number % 2)
            # Claims of the dead are taken over after some seconds; the next kill leaves time for that.
            while any(len(client.answers) == n and client.is_alive() for client, n in zip(clients, n_answers)):
                time.sleep(0.05)
            assert all(client.is_alive() for client in clients), [client.fault for client in clients]
        for client in clients:
            client.ends = True
            client.join(2 * PATIENCE_S)
            assert client.fault is None and not client.is_alive(), client.fault
        answers = {name: answer for client in clients for name, answer in client.answers.items()}
        assert len(answers) >= N_KILLS
        # Both have the same bytes for each, and generate nothing for it.
        for name, (body, expected) in answers.items():
            headers = {"authorization": f"Bearer {key}", "idempotency-key": name}
            for server in pair.servers:
                again = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
                assert (again.status_code, again.headers.get("idempotent-replayed")) == (200, "true"), name
                assert again.content == expected, name
    finally:
        pair.stop()
    checked = subprocess.run([binary, "store", "check", "--database", database], capture_output=True, text=True, timeout=60)
    assert checked.stdout.strip() == "the database is whole", checked.stderr
    if not database.startswith("postgres"):
        connection = sqlite3.connect(database)
        ended = connection.execute("SELECT COUNT(*) FROM ledger WHERE outcome IN ('stop', 'length')").fetchone()[0]
        connection.close()
        # A whole generation whose gateway died before it was kept may be there besides: at most one for each kill and client.
        assert len(answers) <= ended <= len(answers) + N_KILLS * N_CLIENTS, (ended, len(answers))
