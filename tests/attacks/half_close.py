"""Clients that disconnect, and clients that only close their sending side."""

import json
import socket
import threading
import time

from attack import attack, chat
from wire import connect, post, read_answer, reset

# Tokens that may be computed before the server can know that the client has disconnected.
MAX_WASTED = 8000


def wasted(target, before, asked, what):
    """Claims that few tokens were computed for disconnected clients; the healthy client's own are included."""
    # Requests may not have been read yet, so the engine must be idle for a while.
    end = time.monotonic() + 10
    idle = False
    while not idle and time.monotonic() < end:
        time.sleep(0.5)
        idle = all(target.wait_idle(0.1) and not time.sleep(0.25) for _ in range(4))
    tokens = target.metric("vllm:generation_tokens_total") - before
    target.claim(
        tokens <= MAX_WASTED,
        f"{what}: {tokens:.0f} of {asked} tokens computed for nobody (at most {MAX_WASTED})"
        + ("" if idle else "; still computing"),
    )


@attack("half_close", limit_s=60)
def fire_and_close(target):
    """50 small requests for long answers, closed as soon as they are sent, or up to 50 ms later."""
    before = target.metric("vllm:generation_tokens_total")
    request = post(target, chat(n=8, max_tokens=900, ignore_eos=True, temperature=1))
    for _ in range(target.times(50)):
        s = connect(target)
        s.sendall(request)
        # The FIN comes before the request is read, or while it waits, or while it runs.
        time.sleep(target.random.choice((0, 0.005, 0.05)))
        s.close()
    wasted(target, before, 50 * 8 * 900, "fire and close")


@attack("half_close", limit_s=60)
def fire_and_close_streams(target):
    """The same with streams, some of which are closed after the first byte."""
    before = target.metric("vllm:generation_tokens_total")
    request = post(target, chat(n=8, max_tokens=900, ignore_eos=True, temperature=1, stream=True))
    sockets = []
    for n in range(target.times(50)):
        s = connect(target)
        s.sendall(request)
        if n % 2:
            s.close()
        else:
            sockets.append(s)
    for s in sockets:
        s.settimeout(5)
        try:
            s.recv(1)
        except OSError:
            pass
        s.close()
    wasted(target, before, 50 * 8 * 900, "streams left")


@attack("half_close", is_load=True)
def half_closed_answers(target):
    """20 clients that shut down their sending side still get their whole answers."""
    results = []

    def one(n):
        streamed = n % 2 == 0
        asked = chat("Tell me a story.", stream=streamed, max_tokens=200, ignore_eos=True)
        s = connect(target, receive_buffer=4096 if n % 4 < 2 else None)
        s.sendall(post(target, asked))
        time.sleep((n % 5) * 0.1)
        s.shutdown(socket.SHUT_WR)
        if n % 3 == 0:
            time.sleep(2)
        answer = read_answer(s, 30)
        whole = answer.body.endswith(b"data: [DONE]\n\n") if streamed else b'"completion_tokens":200' in answer.body
        results.append(answer.status == 200 and whole)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    target.claim(sum(results) == 20, f"{sum(results)} of 20 half-closed clients got their answers")


@attack("half_close")
def abort_storm(target):
    """2,000 connections are reset at random points of head, body, answer."""
    request = post(target, chat(stream=True, max_tokens=50, ignore_eos=True))
    for _ in range(target.times(2000)):
        s = connect(target)
        s.sendall(request[: target.random.randrange(1, len(request) + 200)])
        if target.random.random() < 0.1:
            s.settimeout(0.05)
            try:
                s.recv(target.random.randrange(1, 500))
            except OSError:
                pass
        reset(s)


@attack("half_close")
def request_ids_again(target):
    """The same request id for 200 concurrent requests: each gets its own answer."""

    def one(n):
        asked = chat(f"Say {n}", max_tokens=4, request_id="the-same")
        sent = target.ask("/v1/chat/completions", asked, x_request_id="the-same")
        answers.append(sent.status)

    answers = []
    threads = [threading.Thread(target=one, args=(n,)) for n in range(target.times(200))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    target.claim(set(answers) == {200}, f"{len(answers)} requests with one id: statuses {sorted(set(answers))}")


@attack("half_close")
def unread_then_gone(target):
    """Streams whose client closes the socket with unread bytes: the kernel sends a reset."""
    before = target.metric("vllm:generation_tokens_total")
    sockets = [connect(target, receive_buffer=4096) for _ in range(target.times(60))]
    for s in sockets:
        s.sendall(post(target, json.dumps(chat(stream=True, max_tokens=900, ignore_eos=True, n=4)).encode()))
    time.sleep(0.5)
    for s in sockets:
        s.close()
    wasted(target, before, 60 * 4 * 900, "readers gone")
