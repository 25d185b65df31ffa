"""Operation of a server: health checks, metrics, draining."""

import json
import signal
import threading
import time
import urllib.error
import urllib.request

HELLO = {"model": "throng-starter", "messages": [{"role": "user", "content": "Hello!"}]}


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.status, answer.read().decode(), answer.headers


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return urllib.request.urlopen(request, timeout=60)


def test_health_and_version_answer(server):
    for path in ("/health", "/health/live", "/health/ready", "/ping", "/load"):
        assert get(server.url + path)[0] == 200
    assert json.loads(get(server.url + "/version")[1])["version"]


def test_the_openapi_document_names_the_endpoints(server):
    document = json.loads(get(server.url + "/openapi.json")[1])
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize"} <= set(document["paths"])


def test_metrics_carry_vllm_s_names(server):
    post(server.url + "/v1/chat/completions", {**HELLO, "max_tokens": 4}).read()
    text = get(server.url + "/metrics")[1]
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:request_success_total",
    ):
        assert name in text, name


def test_request_ids_come_back(server):
    request = urllib.request.Request(
        server.url + "/v1/chat/completions",
        json.dumps({**HELLO, "max_tokens": 1}).encode(),
        {"content-type": "application/json", "x-request-id": "mine-1"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["x-request-id"] == "mine-1"


def test_tokenize_and_detokenize_are_inverse(server):
    tokens = json.load(post(server.url + "/tokenize", {"prompt": "Hello, you two!", "add_special_tokens": False}))
    assert tokens["count"] == len(tokens["tokens"])
    text = json.load(post(server.url + "/detokenize", {"tokens": tokens["tokens"]}))
    assert text["prompt"] == "Hello, you two!"


def test_a_running_stream_finishes_after_sigterm(start):
    with start() as server:
        body = {**HELLO, "stream": True, "max_tokens": 200, "ignore_eos": True, "temperature": 0}
        answer = post(server.url + "/v1/chat/completions", body)
        first = answer.readline()
        assert first.startswith(b"data: ")
        server.process.send_signal(signal.SIGTERM)
        rest = answer.read().decode()
        assert rest.rstrip().endswith("data: [DONE]")
        assert '"finish_reason":"length"' in rest
        assert server.process.wait(60) == 0
