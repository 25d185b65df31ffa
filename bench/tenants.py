#!/usr/bin/env python3
"""What tenants notice of each other: waiting times beside one that sends a hundred times as much, and caches.

    bench/tenants.py fairness --throng target/release/throng
    bench/tenants.py isolation --throng target/release/throng --requests 100000 --seed 1

`fairness` measures the time to the first token of a tenant that sends a request now and then, alone and beside one that keeps `--clients` requests
running and is answered `--times` of them between two of the first; the result is the ratio of the 99th percentiles. `isolation` lets tenants ask for what another one has just been answered: none of
them may get an answer or a cached token of it. Exits with 1 when somebody did.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from comparison import servers

KEYS = ("first-key", "second-key", "third-key")
MODEL = "throng-starter"


def server(settings, *arguments):
    """A server with three tenants."""
    keys = [part for key in KEYS for part in ("--api-key", key)]
    return servers.throng(settings, *keys, *arguments)


class Client:
    """One connection, over which one request is sent after the other."""

    def __init__(self, port, key):
        self.port, self.key, self.reader = port, key, None

    async def ask(self, **fields):
        """Headers, whole body and seconds to the first byte of content of a chat completion."""
        if self.reader is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = json.dumps({"model": MODEL, "temperature": 0, **fields}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {self.key}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        began, first, content = time.perf_counter(), None, b""
        self.writer.write(head.encode() + body)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        if " 200 " not in head.split("\r\n")[0] + " ":
            raise RuntimeError(head)
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        if "content-length" in headers:
            return headers, await self.reader.readexactly(int(headers["content-length"])), None
        while size := int(await self.reader.readline(), 16):
            content += await self.reader.readexactly(size + 2)
            # The first event has the role, the second the first token.
            if first is None and content.count(b"data: ") > 1:
                first = time.perf_counter() - began
        await self.reader.readline()
        return headers, content, first


def messages(text):
    return [{"role": "user", "content": text}]


def percentile(values, share):
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


async def ask_shortly(client, draws):
    text = " ".join(str(draws.random()) for _ in range(3))
    return await client.ask(messages=messages(text), max_tokens=4, ignore_eos=True, stream=True)


async def quiet_tenant(port, n, seed, may_ask):
    """Times to the first token of `n` requests, before each of which `may_ask` is awaited."""
    draws, client, times = random.Random(seed), Client(port, KEYS[0]), []
    for _ in range(n):
        await may_ask(draws)
        times.append((await ask_shortly(client, draws))[2])
    return times


def loud_tenant(port, n_clients, seed, n_answered):
    """Keeps this many requests running, and counts those that were answered. Runs until its process is ended."""

    async def one(number):
        draws, client = random.Random(f"{seed}/{number}"), Client(port, KEYS[1])
        while True:
            await ask_shortly(client, draws)
            n_answered.value += 1

    async def all_clients():
        await asyncio.gather(*(one(number) for number in range(n_clients)))

    asyncio.run(all_clients())


async def pause(draws):
    """Of the quiet tenant while it is alone."""
    await asyncio.sleep(draws.uniform(0.02, 0.1))


async def beside_loud_tenant(port, arguments, number):
    """The quiet tenant's times while another process sends as the loud one, and the requests of that one for each of its own."""
    n_answered = multiprocessing.Value("q", 0, lock=False)
    loud = multiprocessing.Process(target=loud_tenant, args=(port, arguments.clients, number, n_answered), daemon=True)

    async def may_ask(draws):
        due = n_answered.value + arguments.times
        while n_answered.value < due:
            await asyncio.sleep(0.001)
        # Not in step with the others' answers.
        await asyncio.sleep(draws.uniform(0, 0.02))

    loud.start()
    await asyncio.sleep(1)
    before = n_answered.value
    times = await quiet_tenant(port, arguments.requests, f"beside {number}", may_ask)
    n_loud = n_answered.value - before
    loud.terminate()
    loud.join()
    return times, n_loud / arguments.requests


async def fairness(port, arguments):
    await quiet_tenant(port, 20, "warm", pause)
    rounds = []
    for number in range(arguments.rounds):
        alone = await quiet_tenant(port, arguments.requests, f"alone {number}", pause)
        beside, n_loud = await beside_loud_tenant(port, arguments, number)
        rounds.append((alone, beside))
        shown = [f"{name} p50 {1e3 * percentile(times, 0.5):.1f} ms, p99 {1e3 * percentile(times, 0.99):.1f} ms" for name, times in (("alone", alone), ("beside", beside))]
        print(f"round {number}: {'; '.join(shown)}; {n_loud:.0f} times as many requests", flush=True)
    alone, beside = ([one for of in rounds for one in of[which]] for which in (0, 1))
    ratios = [percentile(beside, share) / percentile(alone, share) for share in (0.5, 0.99)]
    print(f"beside: p50 {ratios[0]:.2f} times alone, p99 {ratios[1]:.2f} times")
    return 0


async def isolation(port, arguments):
    n_prompts = -(-arguments.requests // len(KEYS))
    counts = {"asked": 0, "own hits": 0, "foreign answers": 0, "foreign tokens": 0}

    async def worker(numbers):
        clients = [Client(port, key) for key in KEYS]
        for number in numbers:
            draws = random.Random(f"{arguments.seed}/{number}")
            text = " ".join(str(draws.random()) for _ in range(2))
            for client in draws.sample(clients, len(clients)):
                headers, body, _ = await client.ask(messages=messages(text), max_tokens=1)
                usage = json.loads(body)["usage"]
                counts["asked"] += 1
                counts["foreign answers"] += headers.get("x-cache") != "miss"
                counts["foreign tokens"] += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0) > 0
            # The caches are not just off: who asks again is answered from them.
            if number % 50 == 0:
                counts["own hits"] += (await client.ask(messages=messages(text), max_tokens=1))[0].get("x-cache") == "hit"

    began = time.monotonic()
    await asyncio.gather(*(worker(range(first, n_prompts, arguments.clients)) for first in range(arguments.clients)))
    print(f"seed {arguments.seed}: {counts}, {counts['asked'] / (time.monotonic() - began):.0f} requests/s")
    return 1 if counts["foreign answers"] or counts["foreign tokens"] or not counts["own hits"] else 0


def cache_config():
    path = Path(tempfile.mkdtemp()) / "throng.toml"
    path.write_text("[gateway.response_cache]\nmax_memory_bytes = 67108864\n")
    return str(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["fairness", "isolation"])
    parser.add_argument("--throng", required=True)
    parser.add_argument("--threads", help="of the server; its own choice unless given")
    parser.add_argument("--requests", type=int, help="of the quiet tenant in each part; of all tenants")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=100, help="how many requests the loud tenant sends for each of the quiet one")
    parser.add_argument("--clients", type=int, help="requests that run at a time, of the loud tenant or of all")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.model = None
    arguments.requests = arguments.requests or {"fairness": 100, "isolation": 100_000}[arguments.what]
    arguments.clients = arguments.clients or {"fairness": 100, "isolation": 32}[arguments.what]
    what, flags = {"fairness": (fairness, ()), "isolation": (isolation, ("--config", cache_config()))}[arguments.what]
    with server(arguments, *flags) as started:
        sys.exit(asyncio.run(what(started.port, arguments)))


if __name__ == "__main__":
    main()
