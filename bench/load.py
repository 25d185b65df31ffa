"""Users of an OpenAI-compatible server: streamed completions of random token ids, timed at the client.

Prompts are token ids, so that their length is exact; all streams run to their full length. One process and one thread;
needs only Python's standard library.
"""

import asyncio
import http.client
import json
import random
import time

#: Ids of ordinary tokens in every vocabulary measured here.
TOKEN_IDS = range(300, 4000)


class Stream:
    """One streamed completion: when it was sent, and when each event with text arrived."""

    def __init__(self, model, prompt, n_tokens):
        self.sent, self.times, self.n_output = 0.0, [], 0
        self.body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": n_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def run(self, port):
        """Sends the request and reads the answer to its end; any failure raises an error."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        body = json.dumps(self.body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        self.sent = time.perf_counter()
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError((status + await reader.read()).decode(errors="replace"))
        # Lines are events, or chunk sizes and headers, which do not begin like an event.
        async for line in reader:
            if line.startswith(b"data: {"):
                self.take(json.loads(line[6:]), time.perf_counter())
        writer.close()
        if self.n_output != self.body["max_tokens"]:
            raise RuntimeError(f"{self.n_output} tokens instead of {self.body['max_tokens']}")

    def take(self, event, now):
        if "error" in event:
            raise RuntimeError(str(event["error"]))
        if any(choice.get("text") for choice in event.get("choices", ())):
            self.times.append(now)
        if event.get("usage"):
            self.n_output = event["usage"]["completion_tokens"]

    def gaps(self):
        """(end, length) of every gap between two events."""
        return [(after, after - before) for before, after in zip(self.times, self.times[1:])]


def embed(port, model, texts):
    """Asks a server for the vectors of texts, given as token ids; any failure raises an error."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = json.dumps({"model": model, "input": texts})
    connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200 or len(json.loads(text)["data"]) != len(texts):
        raise RuntimeError(text.decode(errors="replace")[:2000])
    connection.close()


class Prompts:
    """Random prompts; the same seed gives the same prompts."""

    def __init__(self, seed):
        self.draw = random.Random(seed)

    def __call__(self, n_tokens, start=()):
        """A prompt of `n_tokens` that begins with `start`."""
        return [*start, *(self.draw.choice(TOKEN_IDS) for _ in range(n_tokens - len(start)))]


async def all_at_once(port, streams):
    await asyncio.gather(*(stream.run(port) for stream in streams))


async def in_a_closed_loop(port, streams, n_users):
    """Each user sends the next request when the last one has ended."""
    waiting = iter(streams)

    async def user():
        for stream in waiting:
            await stream.run(port)

    await asyncio.gather(*(user() for _ in range(n_users)))


async def with_an_intruder(port, streams, intruder, after_events):
    """Sends the intruder when every stream has had this many events."""

    async def intrude():
        while min(len(stream.times) for stream in streams) < after_events:
            await asyncio.sleep(0.005)
        await intruder.run(port)

    await asyncio.gather(all_at_once(port, streams), intrude())


def gaps_around(streams, intruder):
    """The streams' gaps in seconds: those while the intruder's prompt was computed, and all others."""
    beside, usual = [], []
    for stream in streams:
        for end, gap in stream.gaps():
            overlaps = end >= intruder.sent and end - gap <= intruder.times[0]
            (beside if overlaps else usual).append(gap)
    return beside, usual
