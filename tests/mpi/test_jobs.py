"""A model that is divided over the processes of an MPI job: the bits of shared memory, on one host and on several with a slow network that loses
packets; and ranks that are lost."""

import contextlib
import os
import signal
import time

import openai
import pytest
from servers import ROOT

FIXTURES = ROOT / "crates/model/tests/fixtures"
# Grouped heads, experts, latent attention, a hybrid, a sliding window.
MODELS = ["llama3-rope-tied", "qwen3-moe", "deepseek-v3", "qwen3-next", "gemma3"]
PROMPT = "The sailor said that"
N_TOKENS = 60
# A lost rank ends the job within 2 s; the rest is for a busy machine.
LIMIT_S = 20.0
# Exit status of a process whose job has lost a rank.
LOST = 75


def fixture(name):
    found = sorted(FIXTURES.glob(f"{name}/expected.safetensors"))
    assert found, f"no reference model {name}"
    return found[0].parent


def answer(server, prompt, n_tokens=N_TOKENS):
    """Tokens and log-probabilities of a greedy continuation and of its prompt."""
    choice = (
        server.client()
        .completions.create(
            model=server.client().models.list().data[0].id,
            prompt=prompt,
            max_tokens=n_tokens,
            temperature=0,
            logprobs=3,
            extra_body={"ignore_eos": True, "return_token_ids": True, "prompt_logprobs": 2},
        )
        .choices[0]
    )
    return choice.token_ids, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, choice.prompt_logprobs


def wait_for_end(job):
    """Waits until the job has ended by itself; its exit status."""
    status = job.process.wait(LIMIT_S)
    deadline = time.monotonic() + LIMIT_S
    while job.ranks():
        assert time.monotonic() < deadline, "ranks outlive their job"
        time.sleep(0.05)
    return status


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("arguments", "n_ranks"), [(["-tp", 2], 2), (["-pp", 2], 2), (["-tp", 3], 3), (["-tp", 2, "-pp", 2], 4)])
def test_bits_are_those_of_shared_memory(start, start_job, name, arguments, n_ranks):
    prompt = list(range(3, 40))
    try:
        with start(fixture(name), *arguments, "--force") as server:
            expected = answer(server, prompt)
    except RuntimeError as refused:
        if "cannot be divided" in str(refused) or "at most" in str(refused):
            pytest.skip(f"{name} cannot be divided like this")
        raise
    with start_job(n_ranks, fixture(name), *arguments) as job:
        assert len(job.ranks()) == n_ranks
        assert answer(job, prompt) == expected
        assert "transport: MPI" in "".join(job.output)
    assert wait_for_end(job) == 0


def test_processes_share_each_layer_without_flags(start, start_job):
    with start("throng-starter", "-tp", 3, "--force") as server:
        expected = answer(server, PROMPT)
    with start_job(3, "throng-starter") as job:
        assert answer(job, PROMPT) == expected
    assert wait_for_end(job) == 0


def test_another_number_of_processes_than_asked_for_is_refused(start_job):
    with pytest.raises(RuntimeError, match="mpirun started 2 processes"), start_job(2, "throng-starter", "-tp", 3):
        pass


def test_the_model_must_be_there(start_job):
    with pytest.raises(RuntimeError, match="no-such-model"), start_job(2, "/no-such-model.gguf"):
        pass


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("in_stream", [True, False])
def test_the_loss_of_a_rank_ends_the_job(start_job, how, in_stream):
    with start_job(3, "throng-starter") as job:
        expected = answer(job, PROMPT, 200)[0]
        ranks = job.ranks()
        received = []
        if in_stream:
            stream = job.client().completions.create(
                model="throng-starter", prompt=PROMPT, max_tokens=200, temperature=0, stream=True,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )  # fmt: skip
            with contextlib.suppress(openai.APIError, Exception):
                for event in stream:
                    received += event.choices[0].token_ids or []
                    if len(received) == 10:
                        os.kill(ranks[1], how)
        else:
            os.kill(ranks[1], how)
        begun = time.monotonic()
        assert wait_for_end(job) != 0
        print(f"the job ended after {time.monotonic() - begun:.2f} s")
        assert received == expected[: len(received)]
        assert how == signal.SIGKILL or "is lost" in "".join(job.output)


@pytest.mark.parametrize("n_hosts", [2, 3])
def test_hosts_with_a_slow_network_have_the_same_bits(start, start_on_hosts, n_hosts):
    with start("throng-starter", "-tp", n_hosts, "--force") as server:
        expected = answer(server, PROMPT)
    with start_on_hosts(n_hosts, "throng-starter") as (job, network):
        assert answer(job, PROMPT) == expected
        assert network.n_lost > 0, "the network has lost nothing"
        print(f"{network.n_forwarded} packets forwarded, {network.n_lost} lost")
    assert wait_for_end(job) == 0


def test_stages_on_hosts_have_the_same_bits(start, start_on_hosts):
    with start("throng-starter", "-pp", 2, "--force") as server:
        expected = answer(server, PROMPT)
    with start_on_hosts(2, "throng-starter", "-pp", 2) as (job, _):
        assert answer(job, PROMPT) == expected
    assert wait_for_end(job) == 0


def test_a_host_that_is_cut_off_ends_the_job(start_on_hosts):
    with start_on_hosts(2, "throng-starter") as (job, network):
        answer(job, PROMPT, 5)
        network.cut(1)
        deadline = time.monotonic() + LIMIT_S
        # Each side notices by itself.
        while job.ranks():
            assert time.monotonic() < deadline, "".join(job.output[-20:])
            time.sleep(0.05)
        network.mend()
        assert job.process.wait(LIMIT_S * 3) != 0
        assert "is lost" in "".join(job.output)
