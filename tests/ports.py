"""Free ports for programs that are told theirs."""

import itertools
import os
import random
import socket

#: Below those that the system hands out, so that no connection takes one before its program does; so many for each process of a parallel run.
FIRST, N_EACH = 20_000, 1_000
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 12

_next = itertools.count(random.randrange(N_EACH))


def free_port():
    """A port of 127.0.0.1 on which nothing listens, another at each call."""
    while True:
        port = FIRST + WORKER * N_EACH + next(_next) % N_EACH
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
