"""Standard error that cannot be written, while steps fail."""

import os
import signal
import subprocess
import threading
import time

from attack import attack, chat, completion
from server import NotStarted, Server
from wire import connect, post, read_answer, reset


def noise(target):
    """Makes the server log: ignored keys, readers that stop, requests that fail."""
    sockets = []
    for n in range(20):
        target.ask("/v1/chat/completions", {**chat(max_tokens=1), f"unknown{n}": 1})
        s = connect(target, receive_buffer=4096)
        s.sendall(
            post(target, chat(stream=True, n=128, max_tokens=900, ignore_eos=True, temperature=1))
            if n < 1
            else b"GARBAGE\r\n\r\n"
        )
        sockets.append(s)
    for s in sockets:
        reset(s)


def stall(target, seconds):
    """Stops the process for longer than a step may last, while a step runs: the watchdog reports a failed step."""
    streams = threading.Thread(target=lambda: target.chat(max_tokens=900, ignore_eos=True, n=64, temperature=1))
    streams.start()
    time.sleep(0.5)
    for _ in range(3):
        os.kill(target.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(target.pid, signal.SIGCONT)
        time.sleep(0.3)
    streams.join()


def recovers(target):
    """Claims that the server answers again and that its health says so."""
    end = time.monotonic() + 5
    while True:
        answer, health = target.chat(timeout=20), target.ask("/health")
        if answer.status == health.status == 200 or time.monotonic() > end:
            break
        time.sleep(0.2)
    target.claim(answer.status == 200, f"a chat after it: {answer.status}")
    target.claim((answer.status == 200) == (health.status == 200), f"/health after it: {health.status}")


@attack("standard_error", stderr="broken", arguments=("--step-timeout", "1"), disturbs_health=True, soak=False)
def step_fails_without_a_reader(target):
    """Standard error is not read, and a step fails: the engine logs that, and must not stop."""
    noise(target)
    stall(target, 1.6)
    recovers(target)


@attack("standard_error", stderr="full", arguments=("--step-timeout", "1"), disturbs_health=True, soak=False)
def step_fails_on_a_full_disk(target):
    """Standard error is /dev/full, and a step fails."""
    noise(target)
    stall(target, 1.6)
    recovers(target)


@attack("standard_error", arguments=("--step-timeout", "1"), disturbs_health=True, soak=False)
def step_fails(target):
    """A step takes too long while many streams run; a fresh executor goes on."""
    stall(target, 1.6)
    recovers(target)


@attack("standard_error", alone=True)
def drain_without_a_reader(target):
    """After the `tee` of `2>&1 | tee` has exited, streams must still finish after SIGTERM, and the exit status is 0."""
    for stderr in ("broken", "full"):
        for level in ("info", "debug"):
            try:
                server = Server(
                    target.binary, f"{target.folder}/server.log", stderr=stderr, environment={"THRONG_LOG": level}
                )
            except NotStarted as error:
                target.claim(False, f"standard error {stderr}, level {level}: not started, {str(error)[:80]}")
                continue
            target.port, target.pid = server.port, server.pid
            s = connect(target)
            s.sendall(post(target, completion(stream=True, max_tokens=300, ignore_eos=True)))
            s.close()
            s = connect(target)
            s.sendall(post(target, chat(stream=True, max_tokens=300, ignore_eos=True)))
            time.sleep(0.3)
            # A stream that does not end in time is cut too, which is logged while the server drains.
            server.process.send_signal(signal.SIGTERM)
            answer = read_answer(s, 40)
            whole = answer.body.endswith(b"data: [DONE]\n\n")
            # A second signal would end the server at once, with another status.
            try:
                status = server.process.wait(40)
            except subprocess.TimeoutExpired:
                status = "none within 40 s"
            server.stop()
            target.claim(
                whole and status == 0,
                f"standard error {stderr}, level {level}: the stream {'ended well' if whole else 'was cut'}, exit status {status}",
            )
