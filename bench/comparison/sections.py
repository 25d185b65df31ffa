"""What is measured: in each section, both engines do the same work on the same file with the same number of threads."""

import asyncio
import statistics
import time

import load

from .peer import runs_here
from .runs import Row

QWEN, LLAMA, EXPERTS = "qwen3-0.6b", "llama-3.2-1b", "qwen3-moe"
ALL = tuple(f"{shape}-{kind}" for shape in (QWEN, LLAMA) for kind in ("q8_0", "q4_0", "q4_k_m"))
FEW = (f"{QWEN}-q8_0", f"{QWEN}-q4_k_m")


def prefill(bench, model, section="prefill", variant="native", extra=()):
    row = Row(section, model, "prompt of 512, tokens/s", True)
    return bench.in_turn(
        [row],
        lambda i: [bench.throng_bench(model, 512, 2, extra=extra)["prefill"]],
        lambda i: [bench.llama_bench(model, "-p", 512, "-n", 0, variant=variant)],
    )


def decode(bench, model, section="decode", depth=0, n_tokens=128, peer_extra=()):
    where = f" after {depth:,}" if depth else ""
    row = Row(section, model, f"one user{where}, tokens/s", True)
    return bench.in_turn(
        [row],
        lambda i: [bench.throng_bench(model, max(depth, 1), n_tokens + 1)["decode"]],
        lambda i: [bench.llama_bench(model, "-p", 0, "-n", n_tokens, "-d", depth, *peer_extra)],
    )


def crowd(bench, model, section="crowd", users=16):
    row = Row(section, model, f"{users} users decode, tokens/s", True)
    return bench.in_turn(
        [row],
        lambda i: [bench.throng_bench(model, 128, 64, users)["decode"]],
        lambda i: [bench.llama_batched_bench(model, 128, 64, users, users * 192)["decode"]],
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
        lambda i: measured(bench.llama_batched_bench(model, prompt, 64, users, context, "-pps", "-kvu")),
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

    with bench.both_servers(model, users, 192) as (ours, theirs):
        pids = (ours.pid, theirs.pid)
        return bench.in_turn([speed, first], lambda i: measured(ours, i), lambda i: measured(theirs, i), pids)


def prefix(bench, model, users=8):
    row = Row("prefix", model, f"{users} users at once, 448 of 512 shared, 32 out: all done, s", False)

    def measured(server, i):
        prompts = load.Prompts(i)
        start = prompts(448)
        streams = [load.Stream(model, prompts(512, start), 32) for _ in range(users)]
        began = time.perf_counter()
        asyncio.run(load.all_at_once(server.port, streams))
        return [time.perf_counter() - began]

    with bench.both_servers(model, users, 544) as (ours, theirs):
        pids = (ours.pid, theirs.pid)
        return bench.in_turn([row], lambda i: measured(ours, i), lambda i: measured(theirs, i), pids)


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

    with bench.both_servers(model, users + 1, 2048) as (ours, theirs):
        pids = (ours.pid, theirs.pid)
        rows = [relative, worst, wait]
        return bench.in_turn(rows, lambda i: measured(ours, i), lambda i: measured(theirs, i), pids)


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
        lambda i: measured(lambda: bench.llama_server(model, users, 192), i),
    )


def without(section, variant, isa):
    """Prefill with a smaller instruction set than the machine's, if the machine has it."""

    def measured(bench, model):
        if not runs_here(variant):
            return []
        return prefill(bench, model, section, variant, ["--isa", isa])

    return measured


def experts(bench, model):
    return [row for part in (prefill, decode, crowd) for row in part(bench, model, section="moe")]


def at_depth(section, depth):
    # llama.cpp's default is flash attention, with which it decodes half as fast over a long context.
    return lambda bench, model: decode(bench, model, section, depth, n_tokens=32, peer_extra=("-fa", "off"))


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
    "moe": (experts, (f"{EXPERTS}-q8_0", f"{EXPERTS}-q4_0")),
    "memory": (memory, FEW),
    "context-8k": (at_depth("context-8k", 8192), FEW[:1]),
    "context-32k": (at_depth("context-32k", 32768), FEW[:1]),
}
