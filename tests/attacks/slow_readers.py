"""Clients that request large answers and read little or nothing."""

import time
from pathlib import Path

from attack import attack, chat, completion
from wire import connect, head, post, read_answer, reset

SHORT_DEADLINE = str(Path(__file__).with_name("slow_reader.toml"))
STREAM = {"stream": True, "max_tokens": 900, "ignore_eos": True}


def leave_unread(target, request):
    """Sends the request on 300 connections, reads nothing for a while, then resets them."""
    sockets = [connect(target, receive_buffer=4096) for _ in range(target.times(300))]
    for s in sockets:
        s.sendall(request)
    time.sleep(20 * target.intensity)
    for s in sockets:
        reset(s)


@attack("slow_readers", limit_s=60)
def non_reading_streams(target):
    """300 streams that are never read must not keep the healthy client from its answers."""
    leave_unread(target, post(target, chat(**STREAM, logprobs=True, top_logprobs=20)))


@attack("slow_readers", limit_s=60)
def non_reading_streams_of_text(target):
    """300 streams without log-probabilities, whose events are small, are never read."""
    leave_unread(target, post(target, chat(**STREAM)))


@attack("slow_readers")
def one_byte_at_a_time(target):
    """100 streams are read one byte at a time."""
    request = post(target, chat(**STREAM, logprobs=True, top_logprobs=20))
    sockets = [connect(target, receive_buffer=4096) for _ in range(target.times(100))]
    for s in sockets:
        s.sendall(request)
    end = time.monotonic() + 8 * target.intensity
    while time.monotonic() < end:
        for s in sockets:
            s.settimeout(0.001)
            try:
                s.recv(1)
            except OSError:
                pass
        time.sleep(0.05)
    for s in sockets:
        reset(s)


@attack("slow_readers")
def unread_pipeline(target):
    """A thousand requests for the largest document on each of ten connections, and no answer is read."""
    request = head(target, "GET", "/openapi.json") * 1000
    sockets = [connect(target, receive_buffer=4096) for _ in range(target.times(10))]
    for s in sockets:
        s.settimeout(0.5)
        try:
            s.sendall(request)
        except OSError:
            pass
    time.sleep(2)
    for s in sockets:
        reset(s)


@attack("slow_readers", is_load=True)
def unread_answers(target):
    """200 answers of about a megabyte are generated and not read."""
    asked = completion([5] * 900, prompt_logprobs=20, n=2, max_tokens=1)
    request = post(target, asked, "/v1/completions")
    sockets = [connect(target, receive_buffer=4096) for _ in range(target.times(200))]
    for s in sockets:
        s.sendall(request)
    time.sleep(8 * target.intensity)
    for s in sockets:
        reset(s)


@attack("slow_readers", arguments=("--config", SHORT_DEADLINE), soak=False)
def slow_reader_deadline(target):
    """With a slow reader's deadline of 3 s, a stream that is not read is ended soon after it."""
    s = connect(target, receive_buffer=4096)
    s.sendall(post(target, chat(stream=True, max_tokens=900, ignore_eos=True, logprobs=True, top_logprobs=20)))
    time.sleep(1)
    started, gone = time.monotonic(), False
    while time.monotonic() - started < 15 and not gone:
        time.sleep(0.25)
        gone = target.wait_idle(0.1)
    seconds = time.monotonic() - started
    target.claim(
        gone and seconds < 12, f"the request of a reader that stopped was there for {seconds:.1f} s (at most 12)"
    )
    # Longer than the deadline: what is read then is not a complete answer.
    time.sleep(max(0, 8 - seconds))
    answer = read_answer(s, 10)
    target.claim(b"[DONE]" not in answer.body, "the cut stream has no [DONE]")
