"""Batches whose gateways are killed: each line has one result. And batches that are answered without a server."""

import json
import os
import random
import signal
import subprocess
import time

import pytest

from conftest import Server

MODEL = "throng-starter"
PATIENCE_S = 60


def lines(n):
    body = lambda number: {"model": MODEL, "prompt": f"{number}:", "max_tokens": 1, "temperature": 0}
    return [
        {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": body(number)}
        for number in range(n)
    ]


def jsonl(requests):
    return "".join(json.dumps(request) + "\n" for request in requests)


def kill(server):
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()


def check(results, n):
    answered = [json.loads(result) for result in results.splitlines()]
    assert sorted(answer["custom_id"] for answer in answered) == sorted(f"line-{number}" for number in range(n))
    assert all(answer["response"]["status_code"] == 200 for answer in answered)
    assert len({answer["id"] for answer in answered}) == n


def survive(binary, folder, n_lines, n_kills):
    """Two gateways over one database; one of them, by chance, is killed and started again and again."""
    seed = int(os.environ.get("THRONG_SEED", random.randrange(1 << 32)))
    print(f"THRONG_SEED={seed}")
    chance = random.Random(seed)
    database = os.environ.get("THRONG_TEST_DATABASE") or str(folder / "store.db")
    make_key = [binary, "keys", "create", "--database", database, "--organisation", "acme", "--project", "nightly"]
    key = subprocess.run(make_key, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    begin = lambda number: Server(binary, "--database", database, "--ledger-journal", folder / f"journal-{number}")
    servers = [begin(0), begin(1)]
    try:
        ask = lambda: chance.choice(servers).client(api_key=key)
        file = ask().files.create(file=("lines.jsonl", jsonl(lines(n_lines)).encode()), purpose="batch")
        batch = ask().batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        n_done = 0
        for _ in range(n_kills):
            # Somewhere in the lines, not in the wait for a dead runner.
            wanted = n_done + chance.randrange(1, max(2, n_lines // (n_kills + 1)))
            end = time.monotonic() + PATIENCE_S + n_lines
            while (found := ask().batches.retrieve(batch.id)).request_counts.completed < wanted:
                if found.status == "completed":
                    break
                assert time.monotonic() < end, found
                time.sleep(0.02)
            n_done = found.request_counts.completed
            time.sleep(chance.random() * 0.2)
            number = chance.randrange(2)
            kill(servers[number])
            servers[number] = begin(number)
        end = time.monotonic() + PATIENCE_S + n_lines
        while (found := ask().batches.retrieve(batch.id)).status != "completed":
            assert time.monotonic() < end, found
            time.sleep(0.1)
        counts = found.request_counts
        assert (counts.total, counts.completed, counts.failed) == (n_lines, n_lines, 0)
        assert found.error_file_id is None
        check(ask().files.content(found.output_file_id).text, n_lines)
    finally:
        for server in servers:
            server.stop()
    subprocess.run([binary, "store", "check", "--database", database], timeout=120, check=True)


def test_a_batch_survives_kills_of_its_gateways(binary, tmp_path):
    survive(binary, tmp_path, 150, 3)


@pytest.mark.nightly
def test_a_large_batch_survives_many_kills(binary, tmp_path):
    survive(binary, tmp_path, 10_000, 50)


def test_a_batch_without_a_server_goes_on_after_a_kill(binary, tmp_path):
    source, results = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(jsonl(lines(60)))
    command = [binary, "batch", str(source), str(results), "--concurrency", "4"]
    for wanted in 10, 30:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        end = time.monotonic() + PATIENCE_S + 60
        while not results.exists() or results.read_text().count("\n") < wanted:
            assert running.poll() is None and time.monotonic() < end
            time.sleep(0.01)
        running.kill()
        running.communicate()
    # A line that was being written.
    with open(results, "a") as file:
        file.write('{"id": "batch_li')
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S + 120, check=True)
    assert "had been answered before" in done.stdout
    check(results.read_text(), 60)
    again = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S + 120, check=True)
    assert again.stdout.startswith("0 lines answered"), again.stdout
    check(results.read_text(), 60)


def test_bad_lines_without_a_server_have_errors(binary, tmp_path):
    source, results = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    chat = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}
    requests = [
        {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": chat},
        {"custom_id": "message", "method": "POST", "url": "/v1/messages", "body": chat},
        {"custom_id": "bad", "method": "POST", "url": "/v1/chat/completions", "body": {**chat, "temperature": 9}},
        {"custom_id": "nowhere", "method": "POST", "url": "/v1/nothing", "body": chat},
    ]
    source.write_text(jsonl(requests) + "no JSON\n")
    done = subprocess.run(
        [binary, "batch", str(source), str(results)], capture_output=True, text=True, timeout=PATIENCE_S + 120, check=True
    )
    assert done.stdout.startswith("5 lines answered, 3 of them with an error"), done.stdout
    found = {line["custom_id"]: line for line in map(json.loads, results.read_text().splitlines())}
    assert found["chat"]["response"]["body"]["object"] == "chat.completion"
    assert found["message"]["response"]["body"]["type"] == "message"
    assert found["bad"]["response"]["status_code"] == 400
    assert (found["nowhere"]["error"]["code"], found[None]["error"]["code"]) == ("invalid_url", "invalid_json_line")
