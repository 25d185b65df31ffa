"""What is kept for clients, while servers and the database are killed, and while other tenants ask for it: responses, conversations with
their items, files, batches and answers in the background."""

import collections
import http.client
import json
import os
import random
import signal
import subprocess
import threading
import time
import urllib.parse

import postgres
import pytest

from conftest import Server

MODEL = "throng-starter"
PATIENCE_S = 300
N_WRITERS = 4
ASKED = {"model": MODEL, "temperature": 0, "max_output_tokens": 2}


def seed():
    chosen = int(os.environ.get("THRONG_SEED", random.randrange(1 << 32)))
    print(f"THRONG_SEED={chosen}")
    return chosen


def new_key(binary, database, project):
    command = [binary, "keys", "create", "--database", database, "--organisation", "acme", "--project", project]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


class Client:
    """A connection to a server; it is opened again after each failure."""

    def __init__(self, url, key):
        self.address, self.key, self.connection = urllib.parse.urlsplit(url).netloc, key, None

    def ask(self, method, path, body=None, **headers):
        """Status and content. `OSError` or `HTTPException` where the server does not answer to the end."""
        if isinstance(body, dict):
            body, headers = json.dumps(body), {"Content-Type": "application/json", **headers}
        self.connection = self.connection or http.client.HTTPConnection(self.address, timeout=60)
        try:
            self.connection.request(method, path, body, {"Authorization": f"Bearer {self.key}", **headers})
            answer = self.connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()
            self.connection = None
            raise

    def get(self, path):
        status, content = self.ask("GET", path)
        assert status == 200, (path, status, content)
        return json.loads(content)


def upload(client, content):
    parts = [("purpose", "batch", ""), ("file", content, '; filename="lines.jsonl"')]
    fields = "".join(f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{value}\r\n' for name, value, more in parts)
    return client.ask("POST", "/v1/files", (fields + "--b--\r\n").encode(), **{"Content-Type": "multipart/form-data; boundary=b"})


def batch_lines(tag):
    body = lambda number: {"model": MODEL, "prompt": f"{tag} {number}:", "max_tokens": 1, "temperature": 0}
    each = lambda number: {"custom_id": f"{tag}-{number}", "method": "POST", "url": "/v1/completions", "body": body(number)}
    return "".join(json.dumps(each(number)) + "\n" for number in range(3))


class Writer:
    """Makes objects and keeps what was acknowledged. Every text is used once."""

    def __init__(self, number, chance, clients):
        self.number, self.chance, self.clients = number, chance, clients
        self.n_asked, self.n_unknown = 0, 0
        self.responses, self.background, self.files, self.batches = {}, [], {}, {}
        self.deleted = []
        # The texts of each conversation that were acknowledged, in order.
        self.conversations = collections.defaultdict(list)
        # A conversation whose last request was not answered may have its text, once.
        self.perhaps = collections.defaultdict(set)

    def tag(self):
        self.n_asked += 1
        return f"w{self.number}t{self.n_asked}"

    def ask(self, method, path, body=None):
        """The answer if it was acknowledged."""
        client = self.chance.choice(self.clients)
        try:
            status, content = upload(client, body) if path == "/v1/files" else client.ask(method, path, body)
        except (OSError, http.client.HTTPException):
            status, content = 0, b""
        if status == 200:
            return json.loads(content)
        assert status == 0 or status >= 500 or status in (408, 429), (method, path, status, content)
        self.n_unknown += 1
        time.sleep(0.02)
        return None

    def step(self):
        kinds = [self.converse, self.add, self.respond, self.go_on, self.keep_file, self.begin_batch, self.begin_background, self.delete]
        self.chance.choice(kinds)()

    def converse(self):
        tag = self.tag()
        if made := self.ask("POST", "/v1/conversations", {"metadata": {"tag": tag}, "items": [{"role": "user", "content": tag}]}):
            self.conversations[made["id"]].append(tag)

    def add(self):
        if self.conversations:
            id, tag = self.chance.choice(list(self.conversations)), self.tag()
            if self.ask("POST", f"/v1/conversations/{id}/items", {"items": [{"role": "user", "content": tag}]}):
                self.conversations[id].append(tag)
            else:
                self.perhaps[id].add(tag)

    def respond(self):
        if not self.conversations:
            return self.converse()
        id, tag = self.chance.choice(list(self.conversations)), self.tag()
        if made := self.ask("POST", "/v1/responses", {**ASKED, "input": tag, "conversation": id}):
            self.responses[made["id"]] = made
            self.conversations[id].append(tag)
        else:
            self.perhaps[id].add(tag)

    def go_on(self):
        before = self.chance.choice([None, *self.responses])
        if before and self.responses[before]["conversation"]:
            before = None
        if made := self.ask("POST", "/v1/responses", {**ASKED, "input": self.tag(), "previous_response_id": before}):
            self.responses[made["id"]] = made

    def keep_file(self):
        content = batch_lines(self.tag())
        if made := self.ask("POST", "/v1/files", content):
            self.files[made["id"]] = content

    def begin_batch(self):
        if not self.files:
            return self.keep_file()
        file = self.chance.choice(list(self.files))
        asked = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        if len(self.batches) < 20 and (made := self.ask("POST", "/v1/batches", asked)):
            self.batches[made["id"]] = file

    def begin_background(self):
        if len(self.background) < 20 and (made := self.ask("POST", "/v1/responses", {**ASKED, "input": self.tag(), "background": True})):
            self.background.append(made["id"])

    def delete(self):
        leaves = set(self.responses) - {made["previous_response_id"] for made in self.responses.values()}
        leaves = [id for id in leaves if not self.responses[id]["conversation"]]
        if leaves and self.chance.random() < 0.3:
            id = self.chance.choice(sorted(leaves))
            del self.responses[id]
            if self.ask("DELETE", f"/v1/responses/{id}"):
                self.deleted.append(id)

    def check(self, client):
        """Everything that was acknowledged is there once."""
        for id, made in self.responses.items():
            assert client.get(f"/v1/responses/{id}") == made
        for id in self.deleted:
            assert client.ask("GET", f"/v1/responses/{id}")[0] == 404, id
        for id, texts in self.conversations.items():
            items, after = [], ""
            while True:
                page = client.get(f"/v1/conversations/{id}/items?order=asc&limit=100{after}")
                items += page["data"]
                after = f"&after={page['last_id']}"
                if not page["has_more"]:
                    break
            assert len({item["id"] for item in items}) == len(items), id
            said = [item["content"][0]["text"] for item in items if item["role"] == "user"]
            assert len(set(said)) == len(said), ("doubled", id, said)
            assert [text for text in said if text not in self.perhaps[id]] == texts, id
            assert set(said) <= set(texts) | self.perhaps[id], id
        for id, content in self.files.items():
            assert client.ask("GET", f"/v1/files/{id}/content") == (200, content.encode()), id
        for id, file in self.batches.items():
            batch = ended(client, f"/v1/batches/{id}", ("completed",))
            results = client.ask("GET", f"/v1/files/{batch['output_file_id']}/content")[1].decode().splitlines()
            answered = sorted(json.loads(line)["custom_id"] for line in results)
            assert answered == sorted(json.loads(line)["custom_id"] for line in self.files[file].splitlines()), id
        for id in self.background:
            response = ended(client, f"/v1/responses/{id}", ("completed", "incomplete"))
            events = client.ask("GET", f"/v1/responses/{id}?stream=true")[1].decode().split("\n\n")
            told = [json.loads(event.split("data: ", 1)[1]) for event in events if event.startswith("event: ")]
            assert [event["sequence_number"] for event in told] == list(range(len(told))), id
            assert told[-1]["response"] == response, id


def ended(client, path, ends):
    end = time.monotonic() + PATIENCE_S
    while (found := client.get(path))["status"] not in ends:
        assert found["status"] not in ("failed", "cancelled", "expired") and time.monotonic() < end, found
        time.sleep(0.1)
    return found


def survive(binary, folder, n_kills, victim):
    """Clients write at two servers of one database, while one of them or the database is killed again and again."""
    chance = random.Random(seed())
    server = postgres.Postgres() if victim == "PostgreSQL" else None
    database = server.url if server else str(folder / "store.db")
    key = new_key(binary, database, "first")
    begin = lambda number, port=0: Server(binary, "--database", database, "--ledger-journal", folder / f"journal-{number}", "--port", port)
    servers = [begin(0), begin(1)]
    ports = [urllib.parse.urlsplit(each.url).port for each in servers]
    writers = [
        Writer(number, random.Random(chance.random()), [Client(each.url, key) for each in servers]) for number in range(N_WRITERS)
    ]
    is_over, faults = threading.Event(), []

    def write(writer):
        try:
            while not is_over.is_set():
                writer.step()
        except BaseException as fault:
            faults.append(fault)
            is_over.set()

    threads = [threading.Thread(target=write, args=(writer,)) for writer in writers]
    try:
        [thread.start() for thread in threads]
        for _ in range(n_kills):
            if is_over.wait(chance.uniform(0.05, 0.6)):
                break
            if server:
                server.kill()
                time.sleep(chance.uniform(0, 0.1))
                server.start()
            else:
                number = chance.randrange(2)
                os.kill(servers[number].process.pid, signal.SIGKILL)
                servers[number].process.wait()
                servers[number] = begin(number, ports[number])
        is_over.set()
        [thread.join(PATIENCE_S) for thread in threads]
        if faults:
            raise faults[0]
        client = Client(servers[0].url, key)
        for writer in writers:
            writer.check(client)
        count = lambda of: sum(len(of(writer)) for writer in writers)
        counted = {name: count(lambda writer: getattr(writer, name)) for name in ("responses", "conversations", "files", "batches", "background", "deleted")}
        print(f"{n_kills} kills of {victim}:", counted, "not acknowledged:", sum(writer.n_unknown for writer in writers))
        assert all(counted[name] for name in ("responses", "conversations", "files")), counted
        [each.stop() for each in servers]
        subprocess.run([binary, "store", "check", "--database", database], timeout=300, check=True)
    finally:
        is_over.set()
        [each.stop() for each in servers]
        if server:
            server.stop()


def test_what_is_kept_survives_kills_of_servers(binary, tmp_path):
    survive(binary, tmp_path, 4, "Throng")


@pytest.mark.skipif(postgres.programs() is None, reason="PostgreSQL: /usr/lib/postgresql is absent (apt-get install postgresql)")
def test_what_is_kept_survives_kills_of_its_database(binary, tmp_path):
    survive(binary, tmp_path, 4, "PostgreSQL")


@pytest.mark.nightly
def test_what_is_kept_survives_200_kills_of_servers(binary, tmp_path):
    survive(binary, tmp_path, 200, "Throng")


@pytest.mark.nightly
@pytest.mark.skipif(postgres.programs() is None, reason="PostgreSQL: /usr/lib/postgresql is absent (apt-get install postgresql)")
def test_what_is_kept_survives_200_kills_of_its_database(binary, tmp_path):
    survive(binary, tmp_path, 200, "PostgreSQL")


class Tenant:
    """A key with an object of each kind."""

    def __init__(self, url, key):
        client = self.client = Client(url, key)
        made = lambda answer: json.loads(answer[1])["id"] if answer[0] == 200 else pytest.fail(str(answer))
        post = lambda path, **body: made(client.ask("POST", path, body))
        self.response = post("/v1/responses", input="mine", **ASKED)
        self.background = post("/v1/responses", input="mine", background=True, **ASKED)
        self.conversation = post("/v1/conversations", items=[{"role": "user", "content": "mine"}])
        self.item = client.get(f"/v1/conversations/{self.conversation}/items")["data"][0]["id"]
        self.message = client.get(f"/v1/responses/{self.response}/input_items")["data"][0]["id"]
        self.file = made(upload(client, batch_lines("mine")))
        window = {"endpoint": "/v1/completions", "completion_window": "24h"}
        self.batch = post("/v1/batches", input_file_id=self.file, **window)
        params = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "mine"}]}
        self.message_batch = post("/v1/messages/batches", requests=[{"custom_id": "mine", "params": params}])
        self.output = ended(client, f"/v1/batches/{self.batch}", ("completed",))["output_file_id"]
        ended(client, f"/v1/responses/{self.background}", ("completed", "incomplete"))

    def ids(self):
        return {value for value in vars(self).values() if isinstance(value, str)}

    def questions(self):
        """Requests for everything that the tenant has."""
        at = lambda path, *more: [("GET", path, None), *((method, path + end, None) for method, end in more)]
        yield from at(f"/v1/responses/{self.response}", ("DELETE", ""))
        yield from at(f"/v1/responses/{self.response}/input_items")
        yield from at(f"/v1/responses/{self.background}", ("POST", "/cancel"))
        yield from at(f"/v1/responses/{self.background}?stream=true")
        yield from at(f"/v1/responses/{self.background}?stream=true&starting_after=0")
        yield from at(f"/v1/conversations/{self.conversation}", ("DELETE", ""))
        yield "POST", f"/v1/conversations/{self.conversation}", {"metadata": {"a": "b"}}
        yield from at(f"/v1/conversations/{self.conversation}/items")
        yield "POST", f"/v1/conversations/{self.conversation}/items", {"items": [{"role": "user", "content": "not mine"}]}
        yield from at(f"/v1/conversations/{self.conversation}/items/{self.item}", ("DELETE", ""))
        for file in self.file, self.output:
            yield from at(f"/v1/files/{file}", ("DELETE", ""))
            yield from at(f"/v1/files/{file}/content")
        yield from at(f"/v1/batches/{self.batch}", ("POST", "/cancel"))
        yield from at(f"/v1/messages/batches/{self.message_batch}", ("POST", "/cancel"), ("DELETE", ""))
        yield from at(f"/v1/messages/batches/{self.message_batch}/results")
        yield "POST", "/v1/responses", {**ASKED, "input": "?", "previous_response_id": self.response}
        yield "POST", "/v1/responses", {**ASKED, "input": "?", "conversation": self.conversation}
        yield "POST", "/v1/responses", {**ASKED, "input": [{"type": "item_reference", "id": self.message}]}
        yield "POST", "/v1/responses/input_tokens", {"model": MODEL, "input": "?", "previous_response_id": self.response}
        yield "POST", "/v1/responses/compact", {"model": MODEL, "previous_response_id": self.response}
        yield "POST", "/v1/batches", {"input_file_id": self.file, "endpoint": "/v1/completions", "completion_window": "24h"}


LISTS = ["/v1/files", "/v1/batches", "/v1/messages/batches"]


def ask_as_strangers(binary, folder, n_questions):
    """Tenants ask for what others have; none of it is found, and all of it stays."""
    chance = random.Random(seed())
    database = str(folder / "store.db")
    keys = [new_key(binary, database, f"project-{number}") for number in range(4)]
    server = Server(binary, "--database", database, "--ledger-journal", folder / "journal")
    try:
        tenants = [Tenant(server.url, key) for key in keys]
        refusals, faults = collections.Counter(), []

        def ask(own, key, chance, n):
            client = Client(server.url, key)
            others = [(other, list(tenants[other].questions())) for other in range(len(tenants)) if other != own]
            foreign = set().union(*(tenants[other].ids() for other, _ in others))
            try:
                for _ in range(n):
                    if chance.random() < 0.02:
                        text = client.ask("GET", chance.choice(LISTS))[1].decode()
                        assert not any(id in text for id in foreign), text
                        continue
                    _, questions = chance.choice(others)
                    method, path, body = chance.choice(questions)
                    status, content = client.ask(method, path, body)
                    assert status in ((404,) if method == "GET" else (400, 404)), (method, path, body, status, content)
                    assert b"mine" not in content, content
                    refusals[status] += 1
            except BaseException as fault:
                faults.append(fault)

        threads = [
            threading.Thread(target=ask, args=(number % len(keys), keys[number % len(keys)], random.Random(chance.random()), n_questions // 8))
            for number in range(8)
        ]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        if faults:
            raise faults[0]
        print(dict(refusals))
        for tenant, key in zip(tenants, keys):
            # The connection of the beginning may have been idle for too long.
            client = Client(server.url, key)
            for method, path, _ in tenant.questions():
                if method == "GET":
                    assert client.ask("GET", path)[0] == 200, path
            assert len(client.get(f"/v1/conversations/{tenant.conversation}/items")["data"]) == 1
    finally:
        server.stop()


def test_strangers_find_nothing(binary, tmp_path):
    ask_as_strangers(binary, tmp_path, 2_000)


@pytest.mark.nightly
def test_strangers_find_nothing_in_100_000_questions(binary, tmp_path):
    ask_as_strangers(binary, tmp_path, 100_000)
