#!/usr/bin/env python3
"""Measures what a turn with `previous_response_id` costs beyond the same turn with its whole history: the time of whole answers of one
token, in turns, on one connection, with the same prefix in the cache.

    bench/kept_turns.py --throng target/release/throng
    bench/kept_turns.py --throng target/release/throng --turns 50 --rounds 300 --database postgres://…

Needs Linux and Python 3.11; the starter model answers.
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from comparison import servers

MODEL = "throng-starter"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--throng", type=Path, required=True, help="the binary")
    parser.add_argument("--turns", type=int, default=20, help="turns before the measured one")
    parser.add_argument("--rounds", type=int, default=200, help="pairs of measured turns")
    parser.add_argument("--database", help="the database; a SQLite file in a temporary folder unless said")
    return parser.parse_args()


class Client:
    """A connection to a server with a database, and a key of it."""

    def __init__(self, port, key):
        self.key = key
        self.connection = http.client.HTTPConnection("127.0.0.1", port)

    def respond(self, **request):
        """A response, and the seconds that it took."""
        body = json.dumps({"model": MODEL, "temperature": 0, "max_output_tokens": 1, **request})
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        began = time.perf_counter()
        self.connection.request("POST", "/v1/responses", body, headers)
        reply = self.connection.getresponse()
        content = reply.read()
        took = time.perf_counter() - began
        if reply.status != 200:
            sys.exit(f"{reply.status}: {content.decode()}")
        return json.loads(content), took


def converse(client, n_turns):
    """The items of a conversation, and its last response."""
    items, previous = [], None
    for turn in range(n_turns):
        asked = {"role": "user", "content": f"This is note {turn}: keep it in mind, please."}
        response, _ = client.respond(input=[asked], previous_response_id=previous, max_output_tokens=8)
        items += [asked, *({key: item[key] for key in ("role", "content")} for item in response["output"] if item["type"] == "message")]
        previous = response["id"]
    return items, previous


def measure(client, items, previous, rounds, store):
    asked = {"role": "user", "content": "Go on."}
    kinds = {"previous": dict(input=[asked], previous_response_id=previous), "whole": dict(input=[*items, asked])}
    times, usage = {kind: [] for kind in kinds}, {}
    for number in range(rounds + 1):
        # Each kind is first in every second round.
        for kind in sorted(kinds, reverse=number % 2 == 1):
            response, took = client.respond(store=store, **kinds[kind])
            usage[kind] = response["usage"]
            # The first round fills caches.
            times[kind] += [took * 1e3] * (number > 0)
    return times, usage


def main():
    settings = arguments()
    with tempfile.TemporaryDirectory() as folder:
        database = settings.database or str(Path(folder) / "store.db")
        made = [settings.throng, "keys", "create", "--database", database, "--organisation", "bench", "--project", f"p{os.getpid()}"]
        key = subprocess.run(made, capture_output=True, text=True, check=True).stdout.strip()
        command = [settings.throng, "serve", "--database", database, "--ledger-journal", Path(folder) / "journal", "--port"]
        with servers.Server(lambda port: [*command, port], Path(os.devnull)) as server:
            client = Client(server.port, key)
            items, previous = converse(client, settings.turns)
            print(f"{settings.turns} turns before, {settings.rounds} rounds; milliseconds")
            for store in (False, True):
                times, usage = measure(client, items, previous, settings.rounds, store)
                for kind, took in times.items():
                    low, median, high = statistics.quantiles(took, n=4)
                    used = usage[kind]
                    cached = used["input_tokens_details"]["cached_tokens"]
                    print(f"store={store!s:5} {kind:8} median {median:.3f} ({low:.3f} to {high:.3f}), "
                          f"{cached} of {used['input_tokens']} tokens cached")
                # Both turns of a round have the same neighbours on the machine.
                beyond = [previous - whole for previous, whole in zip(times["previous"], times["whole"])]
                low, median, high = statistics.quantiles(beyond, n=4)
                print(f"store={store!s:5} beyond the whole history: median {median:+.3f} ({low:+.3f} to {high:+.3f})")


if __name__ == "__main__":
    main()
