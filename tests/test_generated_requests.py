"""Generated input against the real binary: by the project's own generator, and by schemathesis from the OpenAPI document."""

import os
import subprocess
import sys
from pathlib import Path

import generated_requests
import pytest
import requests
from documented import Document

N_REQUESTS = int(os.environ.get("THRONG_GENERATED_REQUESTS", "300"))
SEEDS = (1, 2)


@pytest.fixture(scope="module")
def server(start):
    # A short context bounds what a request that happens to be valid can generate.
    with start("--max-model-len", "64") as server:
        yield server


@pytest.mark.parametrize("seed", SEEDS)
def test_no_generated_request_is_a_servers_error_and_every_answer_is_documented(server, seed):
    faults = generated_requests.run(server.url, N_REQUESTS, seed)
    assert faults == []


def test_an_answer_of_another_form_is_found(server):
    document = Document(requests.get(f"{server.url}/openapi.json", timeout=60).json())
    body = {"model": "throng-starter", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "logprobs": True, "top_logprobs": 1}
    answer = requests.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
    assert list(document.faults_of_form("ChatCompletion", answer)) == []
    without = {key: value for key, value in answer.items() if key != "usage"}
    assert list(document.faults_of_form("ChatCompletion", without)) != []
    assert list(document.faults_of_form("ChatCompletion", {**answer, "more": 1})) != []
    answer["choices"][0]["logprobs"]["content"][0]["bytes"] = "text"
    assert list(document.faults_of_form("ChatCompletion", answer)) != []


@pytest.mark.nightly
def test_schemathesis_finds_nothing(server, tmp_path):
    program = Path(sys.executable).with_name("st")
    command = [program, "run", f"{server.url}/openapi.json", "--max-examples", "10", "--phases", "examples,coverage,fuzzing"]
    # A document cannot say all that makes a request wrong (contexts, vocabularies, which parameters exclude each other): that some of what it
    # admits is refused with 400 is no finding. /admin is on another listener.
    command += ["--exclude-checks", "positive_data_acceptance", "--exclude-path-regex", "^/admin", "--no-color", "--seed", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
