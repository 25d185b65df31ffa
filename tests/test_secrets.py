"""No secret is written where others read: markers in every place that takes one, in a server that succeeds and in servers that fail, and a
search of all that they write: output, log files, database, journal, kept answers, metrics, explanations, tables and errors."""

import subprocess
import time

import httpx
import pytest
import requests
from ports import free_port
from test_foreign_engines import wait_for

PROMPT = "marker-of-the-prompt-5d1f"
SECRETS = {
    name: f"marker-{name}-7c2e"
    for name in ["admin-key", "redis-password", "classifier-token", "collector-path", "database-password", "replica-key", "worker-token", "wrong-key"]
}


def throng(binary, *arguments, **options):
    return subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True, timeout=120, **options)


def files_of(folder):
    """All bytes of all files, by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_absent(written, secrets):
    assert all(len(text) > 0 for text in written.values()), [place for place, text in written.items() if not text]
    for place, text in written.items():
        text = text.encode() if isinstance(text, str) else text
        for secret in secrets:
            assert secret.encode() not in text, f"{secret} is in {place}"


@pytest.fixture()
def folder(tmp_path):
    written = tmp_path / "written"
    written.mkdir()
    return written


def test_a_server_with_everything_on_writes_none(binary, start, folder, tmp_path):
    admin = free_port()
    settings = tmp_path / "throng.toml"
    settings.write_text(
        f"""
        [gateway.access]
        database = "sqlite:{folder}/throng.db"
        admin_listen = "127.0.0.1:{admin}"
        admin_key = "{SECRETS["admin-key"]}"
        redis = "redis://:{SECRETS["redis-password"]}@127.0.0.1:1/"
        [gateway.moderation.classifier]
        url = "http://127.0.0.1:1/judge"
        token = "{SECRETS["classifier-token"]}"
        on_failure = "allow"
        [gateway.response_cache]
        max_memory_bytes = 1_000_000
        directory = "{folder}/answers"
        [gateway.observability]
        access_log = "{folder}/access.log"
        otlp_endpoint = "http://127.0.0.1:1/{SECRETS["collector-path"]}"
        """
    )
    made = throng(binary, "keys", "create", "--database", f"sqlite:{folder}/throng.db", "--organisation", "acme")
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    errors = []
    with start("--config", settings) as server:

        def ask(path, body=None, secret=key, base=server.url, **headers):
            headers = {"authorization": f"Bearer {secret}", **headers}
            method = "GET" if body is None else "POST"
            answer = requests.request(method, base + path, json=body, headers=headers, timeout=60)
            if answer.status_code >= 400:
                errors.append(answer.text)
            return answer

        chat = {"model": "throng-starter", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4, "temperature": 0}
        for fields in [{}, {}, {"stream": True}, {"max_tokens": 5, "stream": True}]:
            assert ask("/v1/chat/completions", {**chat, **fields}).status_code == 200
        assert ask("/v1/chat/completions", {**chat, "max_tokens": 6}, **{"idempotency-key": "one"}).status_code == 200
        assert ask("/v1/chat/completions", {**chat, "max_tokens": 6}, **{"idempotency-key": "one"}).status_code == 200
        assert ask("/v1/chat/completions", chat, secret=SECRETS["wrong-key"]).status_code == 401
        assert ask("/v1/chat/completions", {**chat, "n": -1}).status_code == 400
        operator = f"http://127.0.0.1:{admin}"
        as_operator = {"secret": SECRETS["admin-key"], "base": operator}
        created = ask("/admin/keys", {"organisation": "acme", "name": "second"}, **as_operator).json()
        second = created["key"]
        assert ask("/admin/keys", {"organisation": ["acme"]}, **as_operator).status_code == 400
        assert ask("/admin/keys", secret=SECRETS["wrong-key"], base=operator).status_code == 401
        written = {
            "the metrics": ask("/metrics", **as_operator).text,
            "the list of requests": ask("/explain").text,
            "the list of keys": ask("/admin/keys", **as_operator).text,
            "the document": ask("/openapi.json").text,
            "the errors": "".join(errors),
        }
        # Lines of the log and entries of the ledger are written shortly after their requests.
        time.sleep(1)
    database = f"sqlite:{folder}/throng.db"
    written["the output"] = "".join(server.output)
    written["throng keys list"] = throng(binary, "keys", "list", "--database", database).stdout
    written["throng usage"] = throng(binary, "usage", "--database", database).stdout
    files = files_of(folder)
    assert any(name.startswith("answers/") for name in files) and "access.log" in files and "throng.db" in files, list(files)
    assert b"chat/completions" in files["access.log"]
    written.update({name: content for name, content in files.items() if content})
    assert_absent(written, [PROMPT, key, second, *SECRETS.values()])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--database", "postgres://throng:{database-password}@127.0.0.1:1/throng"],
        ["--database", "postgres://throng:{database-password}@127.0.0.1:bad/throng"],
        ["--database", "mysql://throng:{database-password}@127.0.0.1/throng"],
        ["--database", "sqlite:/tmp/none.db", "--redis", "redis://:{redis-password}@127.0.0.1:bad/"],
        ["--database", "sqlite:/tmp/none.db", "--redis", "http://:{redis-password}@127.0.0.1/"],
    ],
)
def test_a_server_that_cannot_start_names_no_password(binary, arguments):
    told = [argument.replace("{database-password}", SECRETS["database-password"]).replace("{redis-password}", SECRETS["redis-password"]) for argument in arguments]
    done = throng(binary, "serve", "--port", "0", *told)
    assert done.returncode != 0
    assert_absent({"the error": done.stdout + done.stderr}, SECRETS.values())


def test_a_gateway_whose_replicas_refuse_it_names_no_key(binary, start, tmp_path):
    worker, port = free_port(), free_port()
    log = tmp_path / "log"
    environment = {"THRONG_WORKER_TOKEN": SECRETS["worker-token"], "THRONG_REPLICA_API_KEY": SECRETS["replica-key"], "THRONG_LOG": "debug"}
    with start("--api-key", "another-key") as engine, log.open("w") as output:
        refusing = subprocess.Popen(
            [binary, "worker", "--listen", f"127.0.0.1:{worker}"], env={"THRONG_WORKER_TOKEN": "another-token"}, stdout=output, stderr=output
        )
        replicas = ["--replica", f"throng://127.0.0.1:{worker}", "--replica", f"{engine.url}/v1"]
        gateway = subprocess.Popen([binary, "gateway", "--port", str(port), *replicas], env=environment, stdout=output, stderr=output)
        try:
            url = f"http://127.0.0.1:{port}"
            # The worker says no, and nobody asks the engine before its first request.
            wait_for(lambda: '"reason":"' in httpx.get(f"{url}/fleet").text, "the worker is refused")
            chat = {"model": "throng-starter", "messages": [{"role": "user", "content": "Hi"}]}
            refused = requests.post(f"{url}/v1/chat/completions", json=chat, timeout=60)
            assert refused.status_code >= 400, refused.text
            written = {
                "the error": refused.text,
                "the fleet": requests.get(f"{url}/fleet", timeout=5).text,
                "the metrics": requests.get(f"{url}/metrics", timeout=5).text,
                "the table": throng(binary, "fleet", "status", "--url", url).stdout,
            }
        finally:
            for process in (gateway, refusing):
                process.terminate()
                process.wait(60)
    written["the log"] = log.read_text()
    assert_absent(written, [*SECRETS.values(), "another-key", "another-token"])
