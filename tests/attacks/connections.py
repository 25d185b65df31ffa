"""Very many connections."""

import os
import signal
import socket
import time

from attack import attack, chat
from wire import connect, head, post, read_answer, reset


def begun(target, n):
    """Connections that may still wait in the backlog."""
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.setblocking(False)
        s.connect_ex((target.host, target.port))
    return sockets


@attack("connections")
def idle_connections(target):
    """3,000 connections that send nothing."""
    sockets = [connect(target) for _ in range(target.times(3000))]
    time.sleep(3 * target.intensity)
    for s in sockets:
        reset(s)


@attack("connections", descriptors=(300, 4096), soak=False)
def few_descriptors(target):
    """Started with a soft limit of 300 descriptors and a hard one of 4,096: 1,500 clients stay connected and are
    served."""
    sockets = begun(target, 1500)
    time.sleep(1)
    served = 0
    for s in sockets[-100:]:
        s.settimeout(3)
        try:
            s.sendall(head(target, "GET", "/health/live"))
        except OSError:
            break
        served += read_answer(s, 3).status == 200
        if not served:
            break
    target.claim(
        served == 100,
        f"{served} of the last 100 of 1,500 connections are served (asked one after the other up to the first failure)",
    )
    answer = target.chat(timeout=5)
    target.claim(answer.status == 200, f"a chat beside them: {answer.status}")
    for s in sockets:
        reset(s)


@attack("connections", descriptors=(200, 200), soak=False, disturbs_health=True)
def no_descriptors_left(target):
    """With 200 descriptors in all, 400 clients wait their turn, and afterwards everything works."""
    sockets = begun(target, 400)
    time.sleep(2)
    for s in sockets:
        reset(s)
    time.sleep(0.5)
    statuses = [target.chat(timeout=10).status for _ in range(5)]
    target.claim(set(statuses) == {200}, f"chats after it: {statuses}")


@attack("connections", disturbs_health=True, soak=False)
def backlog(target):
    """1,024 clients connect while the process is stopped: the kernel's backlog takes all of them."""
    os.kill(target.pid, signal.SIGSTOP)
    try:
        sockets = begun(target, 1024)
        time.sleep(0.8)
        joined = 0
        for s in sockets:
            try:
                s.getpeername()
                joined += 1
            except OSError:
                pass
    finally:
        os.kill(target.pid, signal.SIGCONT)
    target.claim(joined >= 1000, f"{joined} of 1,024 connections joined the backlog")
    time.sleep(0.5)
    for s in sockets:
        reset(s)


@attack("connections")
def come_and_go(target):
    """5,000 connections are opened and closed at once, some after a request."""
    for n in range(target.times(5000)):
        s = connect(target)
        if n % 3 == 0:
            s.sendall(head(target, "GET", "/health"))
        if n % 2:
            reset(s)
        else:
            s.close()


@attack("connections", keys=("healthy-key", "attacker-key"), is_load=True)
def full_queue(target):
    """Another key fills the engine's queue: requests beyond it get 503 at once, and the healthy client is served."""
    request = post(target, chat(max_tokens=900, ignore_eos=True, n=1, stream=True))
    sockets = []
    for _ in range(target.times(1400)):
        s = connect(target)
        s.sendall(request)
        sockets.append(s)
    time.sleep(3 * target.intensity)
    refused = 0
    for s in sockets:
        s.setblocking(False)
        try:
            refused += s.recv(12).endswith(b"503")
        except OSError:
            pass
    target.claim(True, f"{refused} of {len(sockets)} were refused with 503")
    for s in sockets:
        reset(s)
