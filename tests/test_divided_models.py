"""A model that is divided over processes: the text of one process, and ranks that die or stop in mid-stream."""

import os
import signal
import time
from pathlib import Path

import openai
import pytest
from processes import children

PROMPT = "The sailor said that"
N_LONG = 400
RECOVERY_LIMIT_S = 60.0


def text_of(server, n_tokens=100):
    answer = server.client().completions.create(
        model="throng-starter",
        prompt=PROMPT,
        max_tokens=n_tokens,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    return answer.choices[0].text


def ranks_of(server):
    """The processes of the other ranks."""
    return children(server.process.pid)


def wait_until_gone(ranks):
    deadline = time.monotonic() + RECOVERY_LIMIT_S
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < deadline, "the ranks outlive the server"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def expected(start):
    with start("throng-starter") as server:
        return text_of(server)


@pytest.mark.parametrize(
    ("arguments", "n_ranks"),
    [
        (["--tensor-parallel-size", 2], 2),
        (["--tensor-parallel-size", 3, "--threads", 1], 3),
        (["--pipeline-parallel-size", 2], 2),
        (["-tp", 2, "-pp", 2], 4),
    ],
)
def test_text_is_that_of_one_process(start, expected, arguments, n_ranks):
    with start("throng-starter", *arguments, "--force") as server:
        ranks = ranks_of(server)
        assert len(ranks) == n_ranks - 1
        assert text_of(server) == expected
    wait_until_gone(ranks)


def kill_a_rank(server, how=signal.SIGKILL):
    """Sends a signal to a rank. Tokens that had been sent may be read while lost ranks are not back yet."""
    deadline = time.monotonic() + RECOVERY_LIMIT_S
    while not (ranks := ranks_of(server)):
        assert time.monotonic() < deadline, "".join(server.output[-20:])
        time.sleep(0.01)
    os.kill(ranks[0], how)


def stream(server, interrupts):
    """Streams, interrupting at the given lengths: the text, its error, and the longest time without a token."""
    text, error, longest, last = "", None, 0.0, time.monotonic()
    interrupts = list(interrupts)
    try:
        answer = server.client().completions.create(
            model="throng-starter",
            prompt=PROMPT,
            max_tokens=N_LONG,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for event in answer:
            text += event.choices[0].text
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
            if interrupts and len(text) > interrupts[0][0]:
                interrupts.pop(0)[1]()
    except openai.APIError as failed:
        error = failed
    return text, error, max(longest, time.monotonic() - last)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("arguments", [["-tp", 2], ["-pp", 2]])
def test_a_stream_goes_on_when_ranks_are_lost(start, arguments, how):
    with start("throng-starter", *arguments, "--force") as server:
        expected = text_of(server, N_LONG)

        def interrupt():
            kill_a_rank(server, how)

        before = ranks_of(server)
        text, error, longest = stream(server, [(50, interrupt), (500, interrupt)])
        assert (text, error) == (expected, None), "".join(server.output[-20:])
        assert not set(before) & set(ranks_of(server))
        # The loss of a rank is noticed within 1.5 s; the rest is for starting it again on a busy machine.
        assert longest < RECOVERY_LIMIT_S


def test_ranks_that_are_lost_while_they_start_are_started_again(start):
    with start("throng-starter", "-tp", 2, "--force") as server:
        expected = text_of(server, N_LONG)

        def interrupt():
            killed, deadline = set(), time.monotonic() + RECOVERY_LIMIT_S
            # The second and the third have not joined the group yet. Three losses do not fail a request.
            while len(killed) < 3:
                assert time.monotonic() < deadline, "".join(server.output[-20:])
                for rank in set(ranks_of(server)) - killed:
                    os.kill(rank, signal.SIGKILL)
                    killed.add(rank)
                time.sleep(0.001)

        assert stream(server, [(50, interrupt)])[:2] == (expected, None), "".join(server.output[-20:])


def test_many_losses_fail_the_request_and_not_the_server(start, expected):
    with start("throng-starter", "-tp", 2, "--force") as server:

        def interrupt():
            kill_a_rank(server)

        # More than are needed: a rank that is killed before it has joined is no further loss.
        text, error, _ = stream(server, [(50 * i, interrupt) for i in range(1, 11)])
        assert error is not None
        assert text[: len(expected)] == expected[: len(text)]
        deadline = time.monotonic() + RECOVERY_LIMIT_S
        while True:
            try:
                assert text_of(server) == expected
                break
            except openai.APIError:
                assert time.monotonic() < deadline, "".join(server.output[-20:])
                time.sleep(0.1)


def test_ranks_end_with_a_server_that_was_killed(start):
    with start("throng-starter", "-tp", 2, "--force") as server:
        ranks = ranks_of(server)
        server.process.kill()
        wait_until_gone(ranks)
