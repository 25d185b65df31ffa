"""The ledger across kills of the real binary: no entry is lost or doubled, and each has the tokens that clients have seen.

`THRONG_KILLS=200 cargo xtask test` (or pytest with that variable) kills more often than the usual few times."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time

import httpx
import pytest
from documented import Document

N_KILLS = int(os.environ.get("THRONG_KILLS", "4"))


@pytest.fixture()
def database(tmp_path):
    return tmp_path / "keys.db"


@pytest.fixture()
def throng(binary, database):
    def run(*arguments):
        command = [binary, *arguments, "--database", str(database)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


class Asking(threading.Thread):
    """Streams answers until the server is gone, and notes how many tokens of each were seen and whether it came to its end."""

    def __init__(self, server, key, number):
        super().__init__(daemon=True)
        self.server, self.key, self.number, self.seen = server, key, number, {}

    def run(self):
        random_source = random.Random(self.number)
        options = {"include_usage": True, "continuous_usage_stats": True}
        while True:
            request = f"seen-{self.number}-{len(self.seen)}-{random_source.getrandbits(64)}"
            body = {
                "model": "throng-starter",
                "messages": [{"role": "user", "content": "Hello"}],
                "max_tokens": random_source.randint(1, 40),
                "stream": True,
                "stream_options": options,
            }
            goes_away = random_source.random() < 0.3
            headers = {"authorization": f"Bearer {self.key}", "x-request-id": request}
            try:
                with httpx.stream(
                    "POST", f"{self.server.url}/v1/chat/completions", json=body, headers=headers, timeout=60
                ) as answer:
                    for line in answer.iter_lines():
                        if line == "data: [DONE]":
                            self.seen[request] = (self.seen[request][0], True)
                        elif line.startswith("data: "):
                            usage = json.loads(line[6:]).get("usage") or {"completion_tokens": 0}
                            self.seen[request] = (usage["completion_tokens"], False)
                            if goes_away and usage["completion_tokens"] > 2:
                                break
            except httpx.HTTPError:
                return


def rows(database):
    connection = sqlite3.connect(database)
    found = connection.execute("SELECT request_id, generated_tokens, outcome FROM ledger").fetchall()
    connection.close()
    return found


def test_kills_neither_lose_nor_double_an_entry(throng, start, database):
    key = throng("keys", "create")
    seen = {}
    for number in range(N_KILLS):
        with start("--database", database) as server:
            clients = [Asking(server, key, 8 * number + client) for client in range(3)]
            for client in clients:
                client.start()
            time.sleep(random.uniform(0.2, 1.2))
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(60)
            for client in clients:
                client.join(60)
                seen.update(client.seen)
    # The last server takes up what the killed ones have left, and counts what the engine counts.
    with start("--database", database, "--admin-key", "operator") as server:
        headers = {"authorization": "Bearer operator"}
        before = sum(tokens for _, tokens, _ in rows(database))
        client = server.client(api_key=key)
        for n in (1, 3):
            client.chat.completions.create(
                model="throng-starter", messages=[{"role": "user", "content": "Hi"}], max_tokens=9, n=n
            )
        metrics = httpx.get(f"{server.url}/metrics", headers=headers).text
        made = [line for line in metrics.splitlines() if line.startswith("vllm:generation_tokens_total")]
    entries = rows(database)
    assert sum(tokens for _, tokens, _ in entries) - before == float(made[0].split()[-1])
    by_request = {}
    for request, tokens, outcome in entries:
        assert request not in by_request, f"{request} stands there twice"
        by_request[request] = (tokens, outcome)
    assert len(seen) >= N_KILLS
    for request, (tokens, has_ended) in seen.items():
        counted, outcome = by_request[request]
        if has_ended:
            assert (counted, outcome in ("stop", "length")) == (tokens, True), request
        else:
            assert tokens <= counted <= 40, request
    assert throng("store", "check") == "the database is whole"


def test_usage_is_printed_as_a_table_and_as_csv(throng, start, database):
    key = throng("keys", "create", "--organisation", "acme", "--project", "search", "--name", "first")
    assert throng("keys", "limit", "--organisation", "acme", "--cost-per-month", "2.50") == "cost_per_month=2.5"
    with start("--database", database) as server:
        chat = {"model": "throng-starter", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        usage = server.client(api_key=key).chat.completions.create(**chat, user="someone").usage
        get = lambda path, **query: httpx.get(server.url + path, params=query, headers={"authorization": f"Bearer {key}"}, timeout=60)
        document = Document(get("/openapi.json").json())
        for path, grouped in [("/v1/organization/usage/completions", "model"), ("/v1/organization/costs", "line_item")]:
            page, until = None, time.monotonic() + 60
            # Entries are written to the database shortly after their requests.
            while time.monotonic() < until and (page is None or '"results":[]' in page.text):
                page = get(path, start_time=int(time.time()), group_by=grouped)
            assert list(document.faults("GET", path, page.status_code, "application/json", page.content)) == []
    table = throng("usage", "--by", "project").splitlines()
    assert "acme/search" in table[1] and str(usage.prompt_tokens) in table[1].split(), table
    assert key[:11] in throng("usage")
    csv = throng("usage", "--by", "user", "--since", "1d", "--csv").splitlines()
    assert csv[0] == "day,user_id,requests,prompt,cached,generated,usd"
    assert csv[1].split(",")[1:] == ["someone", "1", str(usage.prompt_tokens), "0", "4", "0"], csv


def test_the_audit_of_regions_is_printed(throng, start, database, tmp_path):
    key = throng("keys", "create", "--organisation", "acme")
    config = tmp_path / "throng.toml"
    config.write_text(
        '[gateway.routing]\nregion = "eu"\nregions = ["eu", "us"]\n'
        '[[gateway.routing.residency]]\norganisation = "acme"\nregions = ["eu"]\n'
    )
    with start("--database", database, "--config", config) as server:
        chat = {"model": "throng-starter", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        server.client(api_key=key).chat.completions.create(**chat, extra_headers={"x-request-id": "audited"})
    # The last lines are written before the server has ended.
    header, rule, placed = throng("store", "audit", "--organisation", "acme", "--csv").splitlines()
    assert header == "time,event,organisation,permitted,region,replica,model,request,reason"
    assert rule.split(",")[1:] == ["rule", "acme", "eu", "", "", "", "", ""]
    assert placed.split(",")[1:5] == ["placed", "acme", "eu", "eu"]
    assert placed.split(",")[6:] == ["throng-starter", "audited", ""]
    assert throng("store", "audit", "--organisation", "none", "--csv").splitlines() == [header]
    assert "audited" in throng("store", "audit")
