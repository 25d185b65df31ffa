#!/usr/bin/env python3
"""Open-loop load on a server: requests arrive at a rate that does not depend on the answers, up to several times its capacity.

    bench/overload.py --throng target/release/throng --seconds 60 --times 1,2,5

First the capacity is measured: streams in a closed loop, as many as the server runs at a time. Then requests arrive at random
(Poisson) at these multiples of it. For each one line of JSON says

- goodput: tokens/s of requests whose first token came within `--target-ms`, also by the highest goodput so far;
- the median and 99th percentile of the times to the first token of admitted requests, the latter also by that at the first multiple;
- how many requests were refused, and the 99th percentile of the time until a refusal, from the request's first byte to its answer's last.

Then a spike: 80 % of the capacity, `--spike` times the capacity for five seconds, and 80 % again. Refused clients retry up to four times, after
`Retry-After`. The last line says the goodput of each second after the spike by the mean before it, while retries still arrive.

Prompts are random token ids, all different. Client and server share the machine's processors. Needs only Python's standard library.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time

from comparison import servers

SPIKE_SECONDS, BEFORE_SECONDS, AFTER_SECONDS, MAX_RETRIES = 5, 15, 25, 4


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--throng", required=True)
    parser.add_argument("--model", help="a model; the starter model unless given")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--times", default="1,2,5", help="multiples of the capacity")
    parser.add_argument("--spike", type=float, default=10, help="multiple of the capacity in the spike; 0: no spike")
    parser.add_argument("--slots", type=int, default=8, help="sequences that the server runs at a time")
    parser.add_argument("--threads", type=int, help="the server's threads for the model")
    parser.add_argument("--max-queue-wait-ms", type=int, default=1000)
    parser.add_argument("--target-ms", type=float, default=2000, help="a first token after this time does not count")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--generate-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class Outcome:
    """What became of one attempt; times are seconds after it was sent, `arrived` is the clock's."""

    def __init__(self):
        self.arrived = time.perf_counter()
        self.status, self.first_token, self.end, self.n_tokens, self.retry_after = None, None, None, 0, 0

    def is_good(self, target_ms):
        return self.status == 200 and self.first_token is not None and self.first_token * 1e3 <= target_ms


class Load:
    """Sends requests to one server."""

    def __init__(self, settings, port, name):
        self.settings, self.port, self.name = settings, port, name
        self.rng = random.Random(settings.seed)

    async def attempt(self):
        """Sends one request and reads its answer to the end."""
        settings, outcome = self.settings, Outcome()
        body = json.dumps({
            "model": self.name,
            "prompt": [self.rng.randrange(300, 1500) for _ in range(settings.prompt_tokens)],
            "max_tokens": settings.generate_tokens,
            "ignore_eos": True,
            "stream": True,
        }).encode()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22)
            head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
            outcome.arrived = time.perf_counter()
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            outcome.status = int((await reader.readline()).split()[1])
            length = None
            while (line := (await reader.readline()).lower()) != b"\r\n":
                if line.startswith(b"retry-after:"):
                    outcome.retry_after = int(line.split(b":")[1])
                elif line.startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            if length is not None:
                await reader.readexactly(length)
            while length is None and not (line := await reader.readline()).startswith(b"data: [DONE]"):
                if line.startswith(b"data: {"):
                    outcome.n_tokens += 1
                    outcome.first_token = outcome.first_token or time.perf_counter() - outcome.arrived
                elif not line:
                    raise ValueError("the stream is broken off")
            writer.close()
        except (OSError, EOFError, IndexError, ValueError) as error:
            outcome.status = str(error)
        outcome.end = time.perf_counter() - outcome.arrived
        return outcome

    async def retrying(self):
        """The attempts of a client that is refused and comes back when it is told to."""
        outcomes = [await self.attempt()]
        while outcomes[-1].status == 503 and len(outcomes) <= MAX_RETRIES:
            await asyncio.sleep(outcomes[-1].retry_after)
            outcomes.append(await self.attempt())
        return outcomes

    async def closed_loop(self, seconds):
        """Requests a second with as many clients as the server runs sequences."""
        begun, n_done = time.perf_counter(), 0

        async def client():
            nonlocal n_done
            while time.perf_counter() < begun + seconds:
                outcome = await self.attempt()
                n_done += outcome.status == 200

        await asyncio.gather(*(client() for _ in range(self.settings.slots)))
        return n_done / (time.perf_counter() - begun)

    async def arrivals(self, phases, send):
        """What `send` returned for requests that arrive at random, in phases of (requests a second, seconds)."""
        tasks, due, end = [], time.perf_counter(), time.perf_counter()
        for rate, seconds in phases:
            end += seconds
            while due < end:
                await asyncio.sleep(max(0, due - time.perf_counter()))
                tasks.append(asyncio.create_task(send()))
                due += self.rng.expovariate(rate)
        return await asyncio.gather(*tasks)


def percentile(values, p):
    return statistics.quantiles(values, n=100, method="inclusive")[p - 1] if len(values) > 1 else float("nan")


def steady(load, capacity, times, reference):
    """Measures one multiple of the capacity; `reference` has the best goodput and the first times to the first token."""
    settings, begun = load.settings, time.perf_counter()
    outcomes = asyncio.run(load.arrivals([(capacity * times, settings.seconds)], load.attempt))
    seconds = time.perf_counter() - begun
    taken = [outcome for outcome in outcomes if outcome.status == 200]
    refused = [outcome.end for outcome in outcomes if outcome.status == 503]
    first = [outcome.first_token for outcome in taken if outcome.first_token is not None]
    goodput = sum(o.n_tokens for o in taken if o.is_good(settings.target_ms)) / seconds
    p99 = percentile(first, 99)
    best = reference["goodput"] = max(goodput, reference.get("goodput", 0))
    at_first = reference.setdefault("p99", p99)
    print(json.dumps({
        "times_capacity": times,
        "requests": len(outcomes),
        "goodput_tokens_per_s": round(goodput, 1),
        "goodput_by_best": round(goodput / best, 3) if best else None,
        "ttft_p50_ms": round(percentile(first, 50) * 1e3),
        "ttft_p99_ms": round(p99 * 1e3),
        "ttft_p99_by_first": round(p99 / at_first, 2),
        "refused": len(refused),
        "refusal_p50_ms": round(percentile(refused, 50) * 1e3, 1),
        "refusal_p99_ms": round(percentile(refused, 99) * 1e3, 1),
        "other_failures": len(outcomes) - len(taken) - len(refused),
    }), flush=True)


def spike(load, capacity):
    """Goodput before, during and after a spike of clients that retry."""
    settings, begun = load.settings, time.perf_counter()
    base = capacity * 0.8
    phases = [(base, BEFORE_SECONDS), (capacity * settings.spike, SPIKE_SECONDS), (base, AFTER_SECONDS)]
    clients = asyncio.run(load.arrivals(phases, load.retrying))
    attempts = [attempt for client in clients for attempt in client]
    per_second = [0.0] * (BEFORE_SECONDS + SPIKE_SECONDS + AFTER_SECONDS)
    for attempt in attempts:
        second = int(attempt.arrived + (attempt.end or 0) - begun)
        if attempt.is_good(settings.target_ms) and second < len(per_second):
            per_second[second] += attempt.n_tokens
    before = statistics.mean(per_second[2:BEFORE_SECONDS])
    after = per_second[BEFORE_SECONDS + SPIKE_SECONDS:]
    print(json.dumps({
        "spike_times_capacity": settings.spike,
        "attempts": len(attempts),
        "refused": sum(attempt.status == 503 for attempt in attempts),
        "clients_that_gave_up": sum(client[-1].status == 503 for client in clients),
        "goodput_in_spike_by_before": round(statistics.mean(per_second[BEFORE_SECONDS:-AFTER_SECONDS]) / before, 2),
        "goodput_after_by_before": [round(tokens / before, 2) for tokens in after],
        "mean_of_seconds_5_to_20_after": round(statistics.mean(after[5:20]) / before, 3),
    }), flush=True)


def main():
    settings = arguments()
    config = tempfile.NamedTemporaryFile("w", suffix=".toml")
    config.write(f"[gateway.overload]\nmax_queue_wait_ms = {settings.max_queue_wait_ms}\n")
    config.flush()
    slots = ["--config", config.name, "--max-num-seqs", settings.slots]
    with servers.throng(settings, *slots) as server:
        load = Load(settings, server.port, server.model())
        asyncio.run(load.closed_loop(3))
        capacity = asyncio.run(load.closed_loop(max(5, settings.seconds / 4)))
        print(json.dumps({"capacity_requests_per_s": round(capacity, 2)}), flush=True)
        reference = {}
        for times in map(float, settings.times.split(",")):
            steady(load, capacity, times, reference)
        if settings.spike:
            spike(load, capacity)


if __name__ == "__main__":
    main()
