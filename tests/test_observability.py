"""What is told of requests: the access log, `throng explain`, traces for an OpenTelemetry collector; and that no secret is in any
of it."""

import base64
import http.server
import json
import os
import subprocess
import threading
import time

import pytest
import requests
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PATIENCE_S = 30
KEY = "observed-key-9d41c0"
#: None of these may appear in anything that is written.
PROMPT = "canary-of-a-prompt-5581"
HEADER = "canary-of-a-header-7723"
WRONG_KEY = "canary-of-a-wrong-key-1904"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Collector:
    """A collector of traces that keeps what it gets, as OpenTelemetry's own types."""

    def __init__(self):
        collector = self
        self.raw, self.spans = [], []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.raw.append(body.decode())
                assert self.path == "/v1/traces" and self.headers["content-type"] == "application/json"
                collector.spans += spans_of(json.loads(body))
                self.send_response(200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def trace(self, n_spans):
        return until(lambda: [s for s in self.spans if s.trace_id.hex() == TRACE], lambda found: len(found) >= n_spans)


def spans_of(message):
    """The spans of a message. Unknown fields are errors; ids are hexadecimal in OTLP's JSON and base64 in protobuf's."""
    for span in message["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for name in ("traceId", "spanId", "parentSpanId"):
            if name in span:
                span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    request = json_format.ParseDict(message, ExportTraceServiceRequest())
    return [span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]


def until(get, is_enough=bool):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = get()
        if is_enough(found):
            return found
        time.sleep(0.02)
    raise AssertionError(f"not in time: {found!r}")


@pytest.fixture(scope="module")
def observed(start, tmp_path_factory):
    folder = tmp_path_factory.mktemp("observed")
    collector = Collector()
    log = folder / "access.log"
    with start("--api-key", KEY, "--access-log", log, "--otlp-traces-endpoint", collector.url) as server:
        server.collector, server.log = collector, log
        yield server
    collector.server.shutdown()


def ask(server, request_id, key=KEY, prompt=PROMPT, **fields):
    body = {"model": "throng-starter", "messages": [{"role": "user", "content": prompt}], "max_tokens": 6, "ignore_eos": True, **fields}
    headers = {
        "authorization": f"Bearer {key}",
        "x-request-id": request_id,
        "traceparent": f"00-{TRACE}-{PARENT}-01",
        "user-agent": HEADER,
        "x-other": HEADER,
        "cookie": HEADER,
    }
    return requests.post(server.url + "/v1/chat/completions", json=body, headers=headers, timeout=60)


def access_lines(path, request_id):
    def read():
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in map(json.loads, lines) if line["request_id"] == request_id]

    return until(read)


def test_each_request_has_a_line_in_the_access_log(observed):
    assert ask(observed, "logged").status_code == 200
    [line] = access_lines(observed.log, "logged")
    assert (line["method"], line["route"], line["status"]) == ("POST", "/v1/chat/completions", 200)
    assert line["output_tokens"] == 6 and line["outcome"] == "length" and line["trace_id"] == TRACE
    assert 0 <= line["queue_ms"] <= line["ttft_ms"] <= line["total_ms"]
    assert ask(observed, "refused", n=-1).status_code == 400
    [line] = access_lines(observed.log, "refused")
    assert line["error"] and "model" not in line
    assert ask(observed, "stranger", key=WRONG_KEY).status_code == 401
    [line] = access_lines(observed.log, "stranger")
    assert line["tenant"] is None and line["error"] == "invalid_api_key"
    assert os.stat(observed.log).st_mode & 0o007 == 0, "others can read it"


def test_a_rotated_access_log_goes_on_in_a_new_file(observed):
    rotated = observed.log.with_suffix(".1")
    os.rename(observed.log, rotated)
    ask(observed, "after-rotation")
    access_lines(observed.log, "after-rotation")
    assert "after-rotation" not in rotated.read_text()


def test_bodies_are_logged_only_when_asked_for(start, tmp_path):
    log = tmp_path / "access.log"
    with start("--access-log", log, "--access-log-bodies") as server:
        ask(server, "with-body")
        [line] = access_lines(log, "with-body")
        assert json.loads(line["body"])["messages"][0]["content"] == PROMPT


def test_explain_shows_where_the_time_went(observed, binary):
    ask(observed, "explained")

    def run(*arguments):
        command = [binary, "explain", *arguments, "--url", observed.url, "--api-key", KEY]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    until(lambda: run("explained"), lambda ended: ended.returncode == 0)
    text = run("explained").stdout
    for word in ("tokenize", "queue", "prefill", "decode", "total", "6 generated", "beside"):
        assert word in text, text
    told = json.loads(run("explained", "--json").stdout)
    assert abs(sum(phase["ms"] for phase in told["phases"]) - told["total_ms"]) < 0.1
    assert "explained" in run().stdout
    unknown = run("no-such-request")
    assert unknown.returncode == 1 and "no-such-request" in unknown.stderr


def test_a_collector_gets_the_phases_as_spans_of_the_caller_s_trace(observed):
    ask(observed, "traced")
    spans = observed.collector.trace(9)
    exchange = next(span for span in spans if span.kind == 2)
    assert exchange.name == "POST /v1/chat/completions" and exchange.parent_span_id.hex() == PARENT
    phases = [span for span in spans if span.parent_span_id == exchange.span_id]
    assert {"read", "tokenize", "queue", "prefill", "decode"} <= {span.name for span in phases}
    times = [(span.start_time_unix_nano, span.end_time_unix_nano) for span in phases]
    assert all(start <= end for start, end in times)
    assert [start for start, _ in times[1:]] == [end for _, end in times[:-1]], "a phase begins where the last one ended"
    names = {attribute.key for attribute in exchange.attributes}
    assert {"http.route", "http.response.status_code", "gen_ai.usage.output_tokens"} <= names


def test_a_collector_that_is_not_there_costs_nothing_but_its_traces(start):
    with start("--otlp-traces-endpoint", "http://127.0.0.1:9") as server:
        for i in range(3):
            assert ask(server, f"untraced-{i}").status_code == 200
        until(lambda: [line for line in server.output if "collector of traces did not take" in line])


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "https://collector.example", "http://"])
def test_an_address_that_is_none_is_refused(binary, endpoint):
    command = [binary, "serve", "--port", "0", "--otlp-traces-endpoint", endpoint]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "--otlp-traces-endpoint" in ended.stderr


def test_no_secret_is_written_anywhere(observed):
    """Prompts, keys and header values as markers, in requests that succeed, are refused, break, and go."""
    headers = {"authorization": f"Bearer {KEY}", "user-agent": HEADER, "x-other": HEADER}
    errors = []

    def send(method, path, **options):
        answer = requests.request(method, observed.url + path, timeout=60, headers={**headers, **options.pop("headers", {})}, **options)
        errors.append(answer.text if answer.status_code >= 400 else "")
        return answer

    ask(observed, "secret-whole")
    ask(observed, "secret-stream", stream=True)
    ask(observed, "secret-key", key=WRONG_KEY)
    errors.append(ask(observed, "secret-tools", tools=[{"type": "function", "function": {"name": PROMPT}}], tool_choice=7).text)
    send("POST", "/v1/chat/completions", data="{" + PROMPT)
    send("POST", "/v1/completions", json={"model": "throng-starter", "prompt": PROMPT, "n": -1})
    send("POST", "/tokenize", json={"model": "throng-starter", "prompt": PROMPT})
    send("GET", "/v1/models", headers={"authorization": f"Bearer {WRONG_KEY}"})
    send("GET", "/v1/models", headers={"authorization": f"Basic {WRONG_KEY}", "x-api-key": WRONG_KEY})
    send("GET", f"/v1/models?api_key={WRONG_KEY}")
    send("POST", "/v1/chat/completions", data=b"x", headers={"content-type": "text/" + HEADER})
    access_lines(observed.log, "secret-stream")
    observed.collector.trace(9)
    written = {
        "the log": "".join(observed.output),
        "the access logs": observed.log.read_text() + observed.log.with_suffix(".1").read_text(),
        "the traces": "".join(observed.collector.raw),
        "the errors": "".join(errors),
        "the metrics": send("GET", "/metrics").text,
        "the load": send("GET", "/load").text,
        "the list of requests": send("GET", "/explain").text,
        "an explanation": send("GET", "/explain/secret-whole").text,
    }
    assert all(written.values())
    for place, text in written.items():
        for secret in (PROMPT, HEADER, WRONG_KEY, KEY):
            if (place, secret) == ("the errors", PROMPT) or (place, secret) == ("the errors", HEADER):
                continue  # Told only to the client that sent it.
            assert secret not in text, f"{secret} is in {place}"
    core = open(f"/proc/{observed.process.pid}/limits").read()
    [soft] = [line.split()[4] for line in core.splitlines() if line.startswith("Max core file size")]
    assert soft == "0", "a core file would hold prompts and keys"
