"""The log of a server: one line a request, refusals, JSON."""

import json
import subprocess
import time

import pytest
import requests

PATIENCE_S = 30
KEY = "logging-key"
SECRET = "a phrase that nobody logs"


@pytest.fixture(scope="module")
def logging(start):
    with start("--log-format", "json", "--api-key", KEY) as server:
        yield server


def lines(server, matches):
    """The lines of the log that match, as soon as there are some."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        objects = [json.loads(line) for line in server.output if line.startswith("{")]
        if found := [line for line in objects if matches(line)]:
            return found
        time.sleep(0.02)
    raise AssertionError("no such line in\n" + "".join(server.output))


def of_request(server, request_id):
    return lines(server, lambda line: line["message"] == "request" and line["request"] == request_id)


def ask(server, request_id, key=KEY, **fields):
    body = {"model": "throng-starter", "messages": [{"role": "user", "content": SECRET}], **fields}
    headers = {"authorization": f"Bearer {key}", "x-request-id": request_id}
    return requests.post(server.url + "/v1/chat/completions", json=body, headers=headers, timeout=60, stream=True)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_has_one_line_with_its_sizes_and_times(logging, stream):
    request_id = f"sizes-{stream}"
    answer = ask(logging, request_id, max_tokens=7, ignore_eos=True, n=2, stream=stream)
    assert answer.status_code == 200 and answer.content
    [line] = of_request(logging, request_id)
    assert line["level"] == "INFO" and line["status"] == 200 and line["outcome"] == "length"
    assert (line["model"], line["path"]) == ("throng-starter", "/v1/chat/completions")
    assert (line["choices"], line["output_tokens"]) == (2, 14)
    assert line["prompt_tokens"] > 5 and 0 <= line["cached_tokens"] <= line["prompt_tokens"]
    assert 0 <= line["queue_ms"] <= line["ttft_ms"] <= line["total_ms"]
    assert line["timestamp"] and line["tenant"].startswith("key-") and line["client"] == "127.0.0.1"


def test_a_client_that_goes_is_named_so(logging):
    answer = ask(logging, "goes", max_tokens=900, ignore_eos=True, stream=True)
    next(answer.iter_content(64))
    answer.close()
    [line] = of_request(logging, "goes")
    assert line["outcome"] == "abort" and line["output_tokens"] < 900


def test_refusals_are_logged_but_not_each_of_a_flood(logging):
    for i in range(50):
        assert ask(logging, f"stranger-{i}", key="wrong").status_code == 401
    found = lines(logging, lambda line: line.get("code") == "invalid_api_key")
    assert found[0]["level"] == "WARN" and found[0]["status"] == 401
    assert found[0]["host"] == logging.url.removeprefix("http://") and found[0]["client"] == "127.0.0.1"
    foreign = {"host": "evil.example", "authorization": f"Bearer {KEY}"}
    assert requests.get(logging.url + "/v1/models", headers=foreign, timeout=30).status_code == 403
    [line] = lines(logging, lambda line: line.get("host") == "evil.example")
    assert line["status"] == 403
    assert ask(logging, "too-many", n=-1).status_code == 400
    [line] = lines(logging, lambda line: line.get("request") == "too-many")
    assert line["status"] == 400 and line["level"] == "INFO" and line["code"] and line["client"] == "127.0.0.1"
    found = lines(logging, lambda line: line.get("code") == "invalid_api_key")
    assert len(found) < 20, "a flood of refusals floods the log"


def test_no_text_and_no_key_is_logged_and_no_colour(logging):
    output = "".join(logging.output)
    assert SECRET not in output and KEY not in output
    assert "\x1b" not in output and "\\u001b" not in output


def test_text_is_the_default(start):
    with start() as server:
        ask(server, "plain", max_tokens=3, ignore_eos=True).content
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not any('request="plain"' in line for line in server.output):
            time.sleep(0.02)
        [line] = [line for line in server.output if 'request="plain"' in line]
        assert "output_tokens=3" in line and 'outcome="length"' in line and "\x1b" not in line


@pytest.mark.parametrize("log_filter", ["throng=loud", "a=b=c", "info,,[{"])
def test_a_wrong_filter_is_an_error(binary, log_filter):
    ended = subprocess.run(
        [binary, "serve", "--port", "0"],
        env={"THRONG_LOG": log_filter, "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2 and "THRONG_LOG" in ended.stderr


def test_no_memory_of_a_server_is_in_a_core_file(server):
    # Keys and prompts are in it, also where core files are piped to a program, which the limit does not hold for.
    folder = f"/proc/{server.process.pid}"
    with open(f"{folder}/limits") as limits:
        soft_limit = next(line for line in limits if line.startswith("Max core file size")).split()[4]
    with open(f"{folder}/coredump_filter") as mappings:
        assert (soft_limit, int(mappings.read(), 16)) == ("0", 0)
