"""What is measured: in each section, all engines do the same work on the same file with the same number of threads."""

import asyncio
import statistics
import time

import load

from .llama_cpp_build import runs_here
from .runs import Row

QWEN, LLAMA, EXPERTS = "qwen3-0.6b", "llama-3.2-1b", "qwen3-moe"
#: Shares of large models, and an encoder.
LARGE, ENCODER = ("gpt-oss-20b-mxfp4", "qwen3.5-35b-a3b-q4_0"), "bge-m3"
ALL = tuple(f"{shape}-{kind}" for shape in (QWEN, LLAMA) for kind in ("q8_0", "q4_0", "q4_k_m"))
FEW = (f"{QWEN}-q8_0", f"{QWEN}-q4_k_m")


def prefill(bench, model, section="prefill", variant="native", extra=()):
    limit = bench.limit("prefill", model, 512, 2, extra=extra)
    row = Row(section, model, "prompt of 512, tokens/s", True, limit=limit)
    return bench.in_turn(
        [row],
        lambda i: [bench.throng_bench(model, 512, 2, extra=extra)["prefill"]],
        lambda peer, i: [peer.bench(model, 512, 0, variant=variant)],
    )


def decode(bench, model, section="decode", depth=0, n_tokens=128, variant="native", extra=()):
    where = f" after {depth:,}" if depth else ""
    sizes = (max(depth, 1), n_tokens + 1)
    limit = bench.limit("decode", model, *sizes, extra=extra)
    row = Row(section, model, f"one user{where}, tokens/s", True, limit=limit)
    return bench.in_turn(
        [row],
        lambda i: [bench.throng_bench(model, *sizes, extra=extra)["decode"]],
        lambda peer, i: [peer.bench(model, 0, n_tokens, depth, variant)],
    )


def crowd(bench, model, section="crowd", users=16):
    limit = bench.limit("decode", model, 128, 64, users=users)
    row = Row(section, model, f"{users} users decode, tokens/s", True, limit=limit)
    return bench.in_turn(
        [row],
        lambda i: [bench.throng_bench(model, 128, 64, users)["decode"]],
        lambda peer, i: [peer.batched_bench(model, 128, 64, users, users * 192)["decode"]],
    )


def shared(bench, model, users=32, prompt=512):
    speed = Row("shared", model, f"{users} users of one prompt of {prompt} decode, tokens/s", True)
    done = Row("shared", model, "prompt and 64 tokens each, s", False)
    context = prompt + users * 64

    def measured(result):
        return [result["decode"], result["all_s"]]

    return bench.in_turn(
        [speed, done],
        lambda i: measured(bench.throng_bench(model, prompt, 64, users, ["--shared-prefix", prompt])),
        lambda peer, i: measured(peer.batched_bench(model, prompt, 64, users, context, shared=True)),
    )


def http(bench, model, users=10, requests=20):
    speed = Row("http", model, f"{users} users over HTTP, 128 + 64, tokens/s", True)
    first = Row("http", model, "their first token after, median, ms", False)

    def measured(server, i):
        prompts = load.Prompts(i)
        streams = [load.Stream(model, prompts(128), 64) for _ in range(requests)]
        start = time.perf_counter()
        asyncio.run(load.in_a_closed_loop(server.port, streams, users))
        wall = time.perf_counter() - start
        waits = [stream.times[0] - stream.sent for stream in streams]
        return [sum(stream.n_output for stream in streams) / wall, statistics.median(waits) * 1e3]

    with bench.servers(model, users, 192) as servers:
        return bench.servers_in_turn([speed, first], servers, measured)


def prefix(bench, model, users=8):
    row = Row("prefix", model, f"{users} users at once, 448 of 512 shared, 32 out: all done, s", False)

    def measured(server, i):
        prompts = load.Prompts(i)
        start = prompts(448)
        streams = [load.Stream(model, prompts(512, start), 32) for _ in range(users)]
        began = time.perf_counter()
        asyncio.run(load.all_at_once(server.port, streams))
        return [time.perf_counter() - began]

    with bench.servers(model, users, 544) as servers:
        return bench.servers_in_turn([row], servers, measured)


def intruder(bench, model, users=8):
    relative = Row("intruder", model, f"{users} users, a prompt of 2,000 enters: worst gap / usual p99", False)
    worst = Row("intruder", model, "the worst gap, ms", False)
    wait = Row("intruder", model, "the intruder's first token after, s", False)

    def measured(server, i):
        prompts = load.Prompts(i)
        streams = [load.Stream(model, prompts(64), 200) for _ in range(users)]
        long = load.Stream(model, prompts(2000), 2)
        asyncio.run(load.with_an_intruder(server.port, streams, long, after_events=40))
        beside, usual = load.gaps_around(streams, long)
        p99 = statistics.quantiles(usual, n=100)[98]
        return [max(beside) / p99, max(beside) * 1e3, long.times[0] - long.sent]

    with bench.servers(model, users + 1, 2048) as servers:
        return bench.servers_in_turn([relative, worst, wait], servers, measured)


def memory(bench, model, users=10):
    peak = Row("memory", model, f"most resident after {users} users, MiB", False)
    ready = Row("memory", model, "ready after, s", False)

    def measured(start, i):
        prompts = load.Prompts(i)
        with start() as server:
            streams = [load.Stream(model, prompts(128), 64) for _ in range(users)]
            asyncio.run(load.all_at_once(server.port, streams))
            return [server.peak_mib(), server.ready_s]

    return bench.in_turn(
        [peak, ready],
        lambda i: measured(lambda: bench.throng_server(model), i),
        lambda peer, i: measured(lambda: peer.server(model, users, 192), i),
    )


def without(section, variant, isa):
    """Prompts and one user with a smaller instruction set than the machine's, if the machine has it."""

    def measured(bench, model):
        if not runs_here(variant):
            return []
        bench, extra = bench.with_peers_for(variant), ["--isa", isa]
        rows = prefill(bench, model, section, variant, extra)
        return rows + decode(bench, model, section, variant=variant, extra=extra)

    return measured


def embeddings(bench, model, n_tokens=64):
    """Texts of 64 tokens in one request, again and again until about as many tokens have been read for each number of texts."""
    rows = []
    with bench.embedding_servers(model) as servers:
        for n_texts, n_requests in ((1, 32), (32, 2), (256, 1)):

            def measured(server, i, n_texts=n_texts, n_requests=n_requests):
                prompts = load.Prompts(i)
                start = time.perf_counter()
                for _ in range(n_requests):
                    load.embed(server.port, model, [prompts(n_tokens) for _ in range(n_texts)])
                return [n_texts * n_requests / (time.perf_counter() - start)]

            row = Row("embeddings", model, f"{n_texts} texts of {n_tokens} tokens at once, texts/s", True)
            rows += bench.servers_in_turn([row], servers, measured)
    return rows


def all_three(section):
    """Prompts, one user and 16 users."""
    return lambda bench, model: [row for part in (prefill, decode, crowd) for row in part(bench, model, section=section)]


def at_depth(section, depth):
    return lambda bench, model: decode(bench, model, section, depth, n_tokens=32)


#: The function that measures each section, and its models unless others are named.
SECTIONS = {
    "prefill": (prefill, ALL),
    "decode": (decode, ALL),
    "crowd": (crowd, ALL),
    "shared": (shared, FEW),
    "http": (http, FEW),
    "prefix": (prefix, FEW),
    "intruder": (intruder, FEW),
    "avx512": (without("avx512", "avx512", "avx-512-vnni"), FEW),
    "avx2-vnni": (without("avx2-vnni", "avx2-vnni", "avx2-vnni"), FEW),
    "avx2": (without("avx2", "avx2", "avx2"), FEW),
    "moe": (all_three("moe"), (f"{EXPERTS}-q8_0", f"{EXPERTS}-q4_0")),
    "large": (all_three("large"), LARGE),
    "embeddings": (embeddings, (f"{ENCODER}-q8_0",)),
    "memory": (memory, FEW),
    "context-8k": (at_depth("context-8k", 8192), FEW[:1]),
    "context-32k": (at_depth("context-32k", 32768), FEW[:1]),
}
