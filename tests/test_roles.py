"""Prefill and decode apart: a worker for prompts computes long ones while another one decodes. The answers and their usage are
those of one worker, whatever happens to the worker for prompts."""

import contextlib
import os
import signal
import subprocess
import threading

import httpx
import pytest
from ports import free_port
from test_foreign_engines import process, wait_for
from test_travelling_blocks import Fleet, prompt

TOKEN = {"THRONG_WORKER_TOKEN": "the-token"}
FLAGS = ["--threads", "1", "--isa", "scalar"]
#: Words of a prompt that is split.
N_LONG = 160
GREEDY = {"temperature": 0}
SEEDED = {"temperature": 1.0, "top_p": 0.95, "seed": 7}


class Roles(Fleet):
    """A gateway over a worker for prompts and one for answers, which decodes streams in the background."""

    def __init__(self, binary, folder, stack):
        self.operator = {}
        self.ports = {"prefill": free_port(), "decode": free_port()}
        self.workers = {}
        for role, port in self.ports.items():
            command = [binary, "worker", "--listen", f"127.0.0.1:{port}", *FLAGS]
            # The one is told on the command line, the other one in a file.
            (folder / "worker.toml").write_text(f'[worker]\nrole = "{role}"\n')
            command += ["--role", role] if role == "prefill" else ["--config", folder / "worker.toml"]
            self.workers[role] = stack.enter_context(process(command, **TOKEN))
        settings = folder / "fleet.toml"
        replica = '[[replica]]\nname = "{}"\nurl = "throng://127.0.0.1:{}"\n'
        settings.write_text("".join(replica.format(*one) for one in self.ports.items()))
        port = free_port()
        stack.enter_context(process([binary, "gateway", "--port", port, "--config", settings], **TOKEN))
        self.url = f"http://127.0.0.1:{port}"
        wait_for(lambda: [one["state"] for one in self.known()] == ["ready", "ready"], "both workers are ready")
        # Predictions rest on measured steps.
        for number, role in enumerate(self.ports):
            wait_for(lambda: self._warmed(90 + number, role), "steps are measured")
        self.ended = threading.Event()
        self.streams = [threading.Thread(target=self._stream, args=(number,), daemon=True) for number in range(3)]
        stack.callback(self._end)
        for stream in self.streams:
            stream.start()
        wait_for(lambda: self.of("decode")["running"] == len(self.streams), "the streams decode")

    def _warmed(self, number, role):
        body = {"model": "throng-starter", "messages": prompt(number, 40), "max_tokens": 2}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, headers={"x-throng-replica": role}, timeout=120).is_success

    def _stream(self, number):
        while not self.ended.is_set():
            body = {"model": "throng-starter", "prompt": f"Stream {number}:", "max_tokens": 900, "ignore_eos": True, "stream": True}
            with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=120) as answer:
                for _ in answer.iter_lines():
                    if self.ended.is_set():
                        return

    def _end(self):
        self.ended.set()
        for stream in self.streams:
            stream.join(60)

    def of(self, role):
        """What the gateway knows of the worker of a role."""
        return next(one for one in self.known() if one["role"] == role)

    def fallbacks(self):
        text = httpx.get(f"{self.url}/metrics").text
        lines = [line for line in text.splitlines() if line.startswith("throng_split_fallbacks_total")]
        return sum(float(line.split()[-1]) for line in lines)


def ask(url, number, n_words, sampling):
    """The message and the usage of an answer, and the id of the request."""
    body = {"model": "throng-starter", "messages": prompt(number, n_words), "max_tokens": 16, "ignore_eos": True, "logprobs": True}
    answer = httpx.post(f"{url}/v1/chat/completions", json={**body, **sampling}, timeout=120)
    assert answer.status_code == 200, answer.text
    made = answer.json()
    return (made["choices"], made["usage"]), answer.headers["x-request-id"]


def explained(url, request):
    """Why a request was split or not."""
    found = wait_for(lambda: (told := httpx.get(f"{url}/explain/{request}")).status_code == 200 and told, "it is explained")
    return found.json()["split"][0], found.json()


@pytest.fixture
def roles(binary, tmp_path):
    with contextlib.ExitStack() as stack:
        yield lambda: Roles(binary, tmp_path, stack)


@pytest.fixture(scope="module")
def alone(start):
    """A server of one engine."""
    with start(*FLAGS) as server:
        yield server


def test_a_long_prompt_is_computed_by_the_worker_for_prompts(roles, alone):
    fleet = roles()
    for number, sampling in enumerate([GREEDY, SEEDED]):
        expected, _ = ask(alone.url, number, N_LONG, sampling)
        answer, request = ask(fleet.url, number, N_LONG, sampling)
        assert answer == expected
        split, whole = explained(fleet.url, request)
        assert (split["is_split"], split["why"], split["prefill"]) == (True, "pays", "prefill"), whole
        assert "fallback" not in split, split
        assert whole["pulled"][0]["from"] == f"throng://127.0.0.1:{fleet.ports['prefill']}", whole
    assert fleet.metric("throng_split_requests_total") == 2
    assert fleet.fallbacks() == 0
    # Each request is counted once, and its tokens at the worker that computed them.
    counted = fleet.metric("vllm:request_success_total")
    assert 2 <= counted <= 2 + 3 * 20
    n_prompt = sum(ask(alone.url, number, N_LONG, GREEDY)[0][1]["prompt_tokens"] for number in range(2))
    wait_for(lambda: fleet.metric("throng_role_prompt_tokens_total") >= n_prompt, "the counters come with a heartbeat")


def test_a_short_prompt_is_not_split(roles, binary):
    fleet = roles()
    _, request = ask(fleet.url, 5, 20, GREEDY)
    split, whole = explained(fleet.url, request)
    assert (split["is_split"], split["why"]) == (False, "few_tokens"), whole
    assert fleet.metric("throng_split_requests_total") == 0
    shown = subprocess.run([binary, "fleet", "status", "--once", "--url", fleet.url], capture_output=True, text=True, timeout=60)
    # The first column is the name, here that of the role.
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert all(any(row.count(role) == 2 for row in rows) for role in fleet.ports), shown.stdout


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_for_prompts_that_ends_at_one_changes_no_answer(roles, alone, ending):
    fleet, number = roles(), 10 + 2 * int(ending)
    expected, _ = ask(alone.url, number, N_LONG, SEEDED)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(ask(fleet.url, number, N_LONG, SEEDED)))
    asking.start()
    wait_for(lambda: (one := fleet.of("prefill"))["running"] + one["waiting"] > 0 or answers, "it has the prompt")
    os.kill(fleet.workers["prefill"].pid, ending)
    try:
        asking.join(120)
        answer, request = answers[0]
        assert answer == expected
        split, whole = explained(fleet.url, request)
        assert split["is_split"] and split.get("fallback") in ("failed", "not_pulled"), whole
        # Nothing is split while it is away.
        answer, request = ask(fleet.url, number + 1, N_LONG, GREEDY)
        assert answer == ask(alone.url, number + 1, N_LONG, GREEDY)[0]
        split, whole = explained(fleet.url, request)
        assert (split["is_split"], split["why"]) == (False, "no_prefill_replica"), whole
    finally:
        if ending == signal.SIGSTOP:
            os.kill(fleet.workers["prefill"].pid, signal.SIGCONT)
