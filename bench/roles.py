"""Gaps between the tokens of streams beside long prompts: two workers for both parts, and one for prompts beside one for answers.

    python bench/roles.py target/release/throng MODEL [--tokens 2000] [--prompts 20] [--streams 4] [--threads 1]

Needs httpx. Prints the gaps of the streams and the times to the first token of the prompts with and without roles, and the ratios.
"""

import argparse
import contextlib
import re
import socket
import statistics
import subprocess
import threading
import time

import httpx

ROLES = {"both": ["both", "both"], "apart": ["prefill", "decode"]}


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


@contextlib.contextmanager
def fleet(arguments, roles):
    """The address of a gateway over two workers."""
    ports, running = [free_port() for _ in roles], []
    try:
        for port, role in zip(ports, roles):
            command = [arguments.throng, "worker", arguments.model, "--listen", f"127.0.0.1:{port}", "--role", role]
            command += ["--threads", str(arguments.threads), "--exchange-blocks", "on"]
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        port = free_port()
        replicas = [flag for one in ports for flag in ("--replica", f"throng://127.0.0.1:{one}")]
        command = [arguments.throng, "gateway", "--port", str(port), *replicas]
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        url = f"http://127.0.0.1:{port}"
        for _ in range(1200):
            with contextlib.suppress(httpx.TransportError, KeyError):
                if [one["state"] for one in httpx.get(f"{url}/fleet").json()["workers"]] == ["ready"] * len(roles):
                    break
            time.sleep(0.1)
        else:
            raise SystemExit("the workers are not ready")
        yield url
    finally:
        for process in running:
            process.kill()
            process.wait()


def prompt(number, n_tokens):
    """Token ids that begin unlike those of other numbers."""
    return [100 + (i * 7 + number * 131) % 800 for i in range(n_tokens)]


def stream(url, model, body, times, ended):
    """Notes the time of each event of a stream."""
    body = {"model": model, "ignore_eos": True, "stream": True, "temperature": 0, **body}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=600) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                times.append(time.perf_counter())
            if ended.is_set():
                return


def measure(arguments, roles):
    """The gaps of the streams while prompts are computed, the times to their first tokens, and the number of split requests."""
    with fleet(arguments, roles) as url:
        model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
        ended, of_streams, threads = threading.Event(), [[] for _ in range(arguments.streams)], []
        for number, times in enumerate(of_streams):
            body = {"prompt": prompt(9_000 + number, 32), "max_tokens": arguments.stream_tokens}
            threads.append(threading.Thread(target=stream, args=(url, model, body, times, ended)))
            threads[-1].start()
        while not all(len(times) > 8 for times in of_streams):
            time.sleep(0.05)
        begun, firsts = time.perf_counter(), []
        for number in range(arguments.prompts):
            asked, times = time.perf_counter(), []
            stream(url, model, {"prompt": prompt(number, arguments.tokens), "max_tokens": 2}, times, threading.Event())
            firsts.append(times[0] - asked)
        until = time.perf_counter()
        ended.set()
        for thread in threads:
            thread.join()
        split = re.findall(r"^throng_split_requests_total{.*} (\S+)", httpx.get(f"{url}/metrics").text, re.M)
        gaps = []
        for times in of_streams:
            within = [at for at in times if begun <= at <= until]
            gaps += [later - earlier for earlier, later in zip(within, within[1:])]
        if not gaps:
            raise SystemExit("the streams ended before the prompts did: use --stream-tokens")
        return sorted(gaps), sorted(firsts), sum(float(n) for n in split)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("throng")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--stream-tokens", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    rows = {}
    for name, roles in ROLES.items():
        gaps, firsts, n_split = measure(arguments, roles)
        at = lambda share: gaps[min(int(share * len(gaps)), len(gaps) - 1)] * 1e3  # noqa: E731
        rows[name] = [at(0.5), at(0.95), at(0.99), gaps[-1] * 1e3, statistics.median(firsts) * 1e3]
        print(f"{name:6} {len(gaps)} gaps, {n_split:.0f} of {arguments.prompts} prompts split")
        print(f"       gap p50 {rows[name][0]:.1f}, p95 {rows[name][1]:.1f}, p99 {rows[name][2]:.1f}, most {rows[name][3]:.1f} ms; "
              f"first token of prompts p50 {rows[name][4]:.0f} ms")
    ratios = [apart / both for apart, both in zip(rows["apart"], rows["both"])]
    print("ratio  gap p50 {:.2f}, p95 {:.2f}, p99 {:.2f}, most {:.2f}; first token {:.2f}".format(*ratios))


if __name__ == "__main__":
    main()
