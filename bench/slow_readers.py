#!/usr/bin/env python3
"""What thousands of clients that read their streams slowly or never cost a server and a client that reads.

    bench/slow_readers.py --throng target/release/throng --readers 5000

One healthy client streams answers without a break, and the gaps between its tokens are measured: first alone, then while the readers
connect, then while all of them are there. Half of the readers never read, the others a few bytes a second. They open a new connection
when theirs is closed. Printed as one line of JSON for each phase: the healthy client's gaps, also by those alone, the server's memory
(RSS) above that before, in all and for each open connection, the keys and values that were touched meanwhile included, and how many of the readers had a stream.

Readers use the machine's processors as well. Needs only Python's standard library.
"""

import argparse
import json
import multiprocessing
import os
import random
import resource
import socket
import statistics
import time

from comparison import servers


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--throng", required=True)
    parser.add_argument("--model", help="a model; the starter model unless given")
    parser.add_argument("--readers", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=30, help="of each phase")
    parser.add_argument("--bytes-per-s", type=int, default=8, help="what a slow reader reads")
    parser.add_argument("--threads", type=int, help="the server's threads for the model")
    parser.add_argument("server", nargs="*", help="more arguments of the server, after --")
    return parser.parse_args()


def request(port, name, max_tokens):
    body = json.dumps({
        "model": name,
        "messages": [{"role": "user", "content": f"Number {random.random()}: tell me a long story."}],
        "stream": True,
        "max_tokens": max_tokens,
        "ignore_eos": True,
    }).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Readers(multiprocessing.Process):
    """Clients that read a few bytes a second, or nothing. A process of its own: threads of one would wait for another's turn."""

    def __init__(self, settings, port, name):
        super().__init__(daemon=True)
        self.settings, self.port, self.name = settings, port, name
        self.sockets, self.n_reconnects = [], 0
        self.is_settled = multiprocessing.Event()
        self.asked, self.asking = multiprocessing.Pipe(duplex=True)

    def connect(self):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", self.port))
        s.sendall(request(self.port, self.name, 900))
        s.setblocking(False)
        return s

    def run(self):
        while len(self.sockets) < self.settings.readers:
            self.sockets.append(self.connect())
            time.sleep(0.001)
        self.is_settled.set()
        while True:
            begun = time.monotonic()
            for i in range(0, len(self.sockets), 2):
                try:
                    is_closed = self.sockets[i].recv(self.settings.bytes_per_s) == b""
                except BlockingIOError:
                    continue
                except OSError:
                    is_closed = True
                if is_closed:
                    self.sockets[i].close()
                    self.sockets[i] = self.connect()
                    self.n_reconnects += 1
            while self.asked.poll(max(0.05, 1 - (time.monotonic() - begun))):
                self.asked.recv()
                self.asked.send({"never_read": self.heads(), "reconnects": self.n_reconnects})

    def counts(self):
        """What became of them; asked from the process that measures."""
        if not self.is_settled.is_set():
            return {}
        self.asking.send(None)
        return self.asking.recv()

    def heads(self):
        """How many of those that never read have the beginning of a stream, and of another answer, before them."""
        counts = {"streams": 0, "other_answers": 0, "nothing_yet": 0, "closed": 0}
        for s in self.sockets[1::2]:
            try:
                head = s.recv(15, socket.MSG_PEEK)
            except BlockingIOError:
                counts["nothing_yet"] += 1
            except OSError:
                counts["closed"] += 1
            else:
                counts["streams" if head.endswith(b"200 OK") else "other_answers" if head else "closed"] += 1
        return counts


def gaps(port, name, until):
    """Times between two tokens of answers that are read as they come, in seconds, until `until()`; and requests that failed."""
    measured, n_failed = [], 0
    while not until():
        with socket.create_connection(("127.0.0.1", port)) as s, s.makefile("rb") as lines:
            s.sendall(request(port, name, 200))
            if b" 200 " not in lines.readline():
                n_failed += 1
                time.sleep(0.2)
                continue
            last = None
            for line in lines:
                if line.startswith(b"data: [DONE]") or until():
                    break
                if line.startswith(b"data: {"):
                    now = time.perf_counter()
                    measured += [now - last] if last else []
                    last = now
    return measured, n_failed


def rss_bytes(pid):
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def n_sockets(pid):
    links = (f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd"))
    return sum(os.readlink(link).startswith("socket:") for link in links if os.path.lexists(link))


def main():
    settings = arguments()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with servers.throng(settings, *settings.server) as server:
        port, name = server.port, server.model()
        gaps(port, name, lambda end=time.monotonic() + 5: time.monotonic() > end)
        before, alone = rss_bytes(server.pid), None
        readers = Readers(settings, port, name)
        for phase in ("alone", "readers connect", "readers are there"):
            end = time.monotonic() + settings.seconds
            if phase == "readers connect":
                readers.start()

            def until(phase=phase, end=end):
                is_settled = readers.is_settled.is_set() or phase != "readers connect"
                return is_settled and time.monotonic() > end

            measured, n_failed = gaps(port, name, until)
            # Where no request was taken in there is nothing to measure.
            measured = measured if len(measured) > 1 else [float("nan")] * 2
            p50, p99 = (statistics.quantiles(measured, n=100)[p - 1] for p in (50, 99))
            alone = alone or (p50, p99)
            above, n_open = rss_bytes(server.pid) - before, n_sockets(server.pid)
            print(json.dumps({
                "phase": phase,
                "gaps": sum(gap == gap for gap in measured),
                "failed_requests": n_failed,
                "gap_p50_ms": round(p50 * 1e3, 2),
                "gap_p99_ms": round(p99 * 1e3, 2),
                "gap_p50_by_alone": round(p50 / alone[0], 2),
                "gap_p99_by_alone": round(p99 / alone[1], 2),
                "sockets": n_open,
                "memory_above_mib": round(above / 2**20, 1),
                "memory_kib_per_socket": round(above / 2**10 / max(1, n_open), 1),
                **readers.counts(),
            }), flush=True)


if __name__ == "__main__":
    main()
