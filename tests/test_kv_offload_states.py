"""Recurrent, hybrid and sliding-window models on disk: after a restart their prompts are found with the same log-probabilities."""

import os
import signal

import httpx
import pytest

from conftest import ROOT, Server

FIXTURES = ROOT / "crates/model/tests/fixtures"
N_PROMPT = 400


@pytest.fixture
def serve(binary, tmp_path):
    running = []

    def start(*arguments):
        server = Server(binary, *arguments, "--kv-offload-dir", tmp_path / "blocks")
        running.append(server)
        return server

    yield start
    for server in running:
        server.process.kill()


def prompt(number):
    return [1 + (i * 7 + number * 31 + i // 16 * number) % 300 for i in range(N_PROMPT)]


def ask(server, model, number):
    """Tokens with their log-probabilities, and the number of prompt tokens that were found."""
    body = {"model": model, "prompt": prompt(number), "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 3}
    answer = httpx.post(f"{server.url}/v1/completions", json=body | {"return_token_ids": True}, timeout=120)
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    return whole["choices"][0], whole["usage"]["prompt_tokens_details"]["cached_tokens"]


def stop(server, how):
    os.kill(server.process.pid, how)
    server.process.wait(timeout=60)


@pytest.mark.parametrize("name", ["falcon-h1", "granite-hybrid", "lfm2", "nemotron-h", "qwen3-5", "qwen3-next", "mistral-sliding", "gemma3"])
def test_prompts_are_found_after_a_restart(serve, tmp_path, name):
    server = serve(FIXTURES / name)
    first = [ask(server, name, number) for number in range(3)]
    assert all(n_cached == 0 for _, n_cached in first), first
    stop(server, signal.SIGTERM)

    server = serve(FIXTURES / name)
    again = [ask(server, name, number) for number in range(3)]
    assert [answer for answer, _ in again] == [answer for answer, _ in first]
    assert sorted(n_cached for _, n_cached in again)[1:] == [N_PROMPT - 16] * 2, [n_cached for _, n_cached in again]
    stop(server, signal.SIGKILL)

    # A file that is damaged everywhere is as good as none.
    [path] = (tmp_path / "blocks").glob("*/blocks")
    damaged = bytearray(path.read_bytes())
    for at in range(5000, len(damaged), 97):
        damaged[at] ^= 0x10
    path.write_bytes(damaged)
    server = serve(FIXTURES / name)
    after = [ask(server, name, number) for number in range(3)]
    assert [answer for answer, _ in after] == [answer for answer, _ in first]
    assert all(n_cached == 0 for _, n_cached in after), after
    stop(server, signal.SIGTERM)
