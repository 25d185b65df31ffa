"""Signals and flags, as sent by operators and container runtimes, with mistakes."""

import os
import signal
import subprocess
import time

from attack import attack, chat
from server import NotStarted, Server
from wire import connect, post, read_answer


@attack("operating", alone=True)
def stopped_right_after_ready(target):
    """SIGTERM as soon as the server is ready, twenty times: exit status 0."""
    statuses = []
    for n in range(20):
        server = Server(target.binary, f"{target.folder}/server.log")
        time.sleep(n * 0.002)
        statuses.append(server.stop(10))
    target.claim(set(statuses) == {0}, f"exit statuses {sorted(set(statuses), key=str)}")


def with_stream(target, *signals, pause_s=0.2, **more):
    """Sends these signals while a stream runs; returns whether the stream was complete, the exit status, the
    seconds."""
    server = Server(target.binary, f"{target.folder}/server.log")
    target.port, target.pid = server.port, server.pid
    s = connect(target)
    s.sendall(post(target, chat(stream=True, max_tokens=900, ignore_eos=True, **more)))
    time.sleep(0.2)
    started = time.monotonic()
    for number in signals:
        os.kill(server.pid, number)
        time.sleep(pause_s)
    whole = read_answer(s, 40).body.endswith(b"data: [DONE]\n\n")
    running = server.is_running()
    status = None if running and signal.SIGTERM not in signals else server.process.wait(40)
    seconds = time.monotonic() - started
    alive = server.is_running()
    server.stop()
    return whole, status, seconds, alive


@attack("operating", alone=True, limit_s=120)
def signals(target):
    """SIGHUP, SIGPIPE and SIGUSR1 end no stream; a second SIGTERM ends the server at once."""
    for number in (signal.SIGHUP, signal.SIGPIPE):
        whole, _, _, alive = with_stream(target, number)
        target.claim(
            whole and alive,
            f"{number.name}: the stream {'ended well' if whole else 'was cut'}, the server {'lives' if alive else 'is gone'}",
        )
    whole, status, seconds, _ = with_stream(target, signal.SIGTERM)
    target.claim(
        whole and status == 0, f"SIGTERM: the stream {'ended well' if whole else 'was cut'}, exit status {status}"
    )
    _, status, seconds, _ = with_stream(target, signal.SIGTERM, signal.SIGTERM, pause_s=0.1, n=64, temperature=1)
    target.claim(
        status is not None and status >= 0 and seconds < 5, f"SIGTERM twice: exit status {status} after {seconds:.1f} s"
    )


BAD_FLAGS = (
    ("--step-timeout", "0"),
    ("--max-logprobs", "-5"),
    ("--threads", "100000"),
    ("--served-model-name", "a\nb"),
    ("--served-model-name", ""),
    ("--api-key", ""),
    ("--api-key", "a\nb"),
    ("--max-num-seqs", "0"),
    ("--max-num-batched-tokens", "0"),
    ("--kv-cache-memory", "1"),
    ("--kv-cache-memory", "1000TiB"),
    ("--max-model-len", "0"),
    ("--max-model-len", "99999999999"),
    ("--host", "0.0.0.0"),
    ("--host", "evil.invalid"),
    ("--config", "/dev/null/x"),
    ("--config", "/dev/zero"),
    ("--chat-template", "/dev/zero"),
    ("--inter-token-target-ms", "-1"),
    ("--shutdown-timeout", "-1"),
    ("--shutdown-timeout", "1e300"),
)


@attack("operating", alone=True, limit_s=150)
def bad_flags(target):
    """Invalid settings are refused with a message, within seconds, without a crash."""
    wrong = []
    for flag, value in BAD_FLAGS:
        # Running out of memory would affect the machine: 8 GB of address space are enough for the starter model.
        line = 'ulimit -v 8000000; exec "$0" serve --port 0 "$1" "$2"'
        try:
            ended = subprocess.run(
                ["bash", "-c", line, target.binary, flag, value], capture_output=True, timeout=5, check=False
            )
            status, said = ended.returncode, ended.stderr
        except subprocess.TimeoutExpired as error:
            status, said = "serves or hangs", error.stderr or b""
        if status not in (1, 2) or not said:
            wrong.append(f"{flag} {value!r}: {status}")
    target.claim(not wrong, f"of {len(BAD_FLAGS)} bad settings not refused: {', '.join(wrong) or 'none'}")


@attack("operating", alone=True)
def port_taken(target):
    """A second server on the same port reports the conflict and exits."""
    server = Server(target.binary, f"{target.folder}/server.log")
    line = [target.binary, "serve", "--port", str(server.port)]
    try:
        ended = subprocess.run(line, capture_output=True, timeout=10, check=False)
        target.claim(ended.returncode == 1 and ended.stderr, f"exit status {ended.returncode}")
    except subprocess.TimeoutExpired:
        target.claim(False, "the second server hangs")
    server.stop()


@attack("operating", alone=True)
def little_memory_for_keys_and_values(target):
    """A KV cache for a single sequence: long and many requests wait, are shortened or refused; nothing hangs."""
    try:
        server = Server(target.binary, f"{target.folder}/server.log", ("--kv-cache-memory", "4MiB"))
    except NotStarted as error:
        return target.claim(False, f"not started: {error}")
    target.port, target.pid = server.port, server.pid
    statuses = [
        target.chat("word " * n, max_tokens=300, ignore_eos=True, n=4, timeout=30).status for n in (1, 100, 400, 900)
    ]
    target.claim(set(statuses) <= {200, 400}, f"statuses {statuses}")
    return target.claim(server.stop() == 0, "exit status 0")
