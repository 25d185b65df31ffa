"""Clients that request a high priority."""

import time

from attack import attack, chat
from wire import connect, post, reset

KEYS = ("healthy-key", "attacker-key")


def crowd(target, n_streams, **more):
    """Many streams that are read."""
    sockets = []
    for _ in range(target.times(n_streams)):
        s = connect(target)
        s.sendall(post(target, chat(**more)))
        sockets.append(s)
    end = time.monotonic() + 12 * target.intensity
    while time.monotonic() < end:
        for s in sockets:
            s.setblocking(False)
            try:
                s.recv(1 << 16)
            except OSError:
                pass
        time.sleep(0.05)
    for s in sockets:
        reset(s)


@attack("priorities", keys=KEYS, is_load=True)
def first_of_all(target):
    """Another key's 300 requests at priority -2^31 must not make a healthy one wait."""
    crowd(target, 300, stream=True, max_tokens=900, ignore_eos=True, priority=-(2**31))


@attack("priorities", keys=KEYS, is_load=True)
def first_of_all_with_choices(target):
    """The same with 8 choices each."""
    crowd(target, 100, stream=True, max_tokens=900, ignore_eos=True, n=8, temperature=1, priority=-(2**31))


@attack("priorities", keys=KEYS, is_load=True, arguments=("--scheduling-policy", "priority"))
def first_by_policy(target):
    """With --scheduling-policy priority too, a key without the right to a higher priority gains nothing."""
    crowd(target, 300, stream=True, max_tokens=900, ignore_eos=True, priority=-(2**31))


@attack("priorities", keys=KEYS, is_load=True)
def long_prompts(target):
    """Another key sends 300 different prompts as long as the context."""
    sockets = []
    for n in range(target.times(300)):
        s = connect(target)
        s.sendall(post(target, chat(f"{n} " + "word " * 900, max_tokens=1)))
        sockets.append(s)
    time.sleep(10 * target.intensity)
    for s in sockets:
        reset(s)
