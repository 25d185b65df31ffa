"""Ranks that are killed, stopped or cut off at random moments under streams through a gateway: no stream hangs, fails or has other text.

Two workers of the gateway have the same model over two ranks: one over shared memory, one over two hosts by MPI. One loss at a time; the job is
started again as its supervisor would.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest
from jobs import MPIRUN, OPTIONS, agent_of, on_hosts, ranks_of_job
from ports import free_port
from processes import children

pytestmark = pytest.mark.nightly

N_LOSSES = int(os.environ.get("THRONG_RANK_LOSSES", "200"))
SEED = int(os.environ.get("THRONG_RANK_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
N_STREAMS, N_TOKENS = 4, 300
TOKEN = "the-token"
# A lost rank is noticed within 2 s, and a stream goes on at once on the other worker; the rest is for a busy machine.
GAP_LIMIT_S = 60.0
READY_LIMIT_S = 180.0
# Time without a first rank after which its supervisor ends the rest of a job.
PROBE_S = 3.0


class Worker:
    """A worker that is started again when it has ended, or when its first rank has and `mpirun` waits for a host that is cut off: a probe of
    Kubernetes and a watchdog of systemd do the same."""

    def __init__(self, command, environment, log, job=None):
        self.command, self.environment, self.log, self.job = command, environment, log, job
        self.n_starts, self.is_ending = 0, threading.Event()
        self.thread = threading.Thread(target=self._supervise, daemon=True)
        self.thread.start()

    def _supervise(self):
        while not self.is_ending.is_set():
            self.n_starts += 1
            with open(self.log, "ab") as log:
                self.process = subprocess.Popen(self.command, env=self.environment, stdout=log, stderr=log)
                was_there, gone_since = False, time.monotonic()
                while self.process.poll() is None:
                    time.sleep(0.1)
                    is_there = self.job is None or bool(self.job.ranks())
                    was_there |= is_there
                    if is_there or not was_there:
                        gone_since = time.monotonic()
                    if time.monotonic() - gone_since > PROBE_S:
                        self.process.kill()
            if self.job is not None:
                self.job.clear()
            time.sleep(0.2)

    def end(self):
        self.is_ending.set()
        self.process.terminate()
        self.thread.join(30)
        if self.process.poll() is None:
            self.process.kill()


class Hosts:
    """The processes of a job on its hosts."""

    def __init__(self, network, name, binary):
        self.network, self.name, self.binary = network, name, binary

    def ranks(self):
        return ranks_of_job(self.name, self.binary)

    def clear(self):
        """Ends what a job has left on its hosts, as the end of a pod does."""
        for name in self.network.names:
            found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
            for pid in map(int, found.split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class Streams:
    """Streams through the gateway, one after the other on each of several threads."""

    def __init__(self, url, expected):
        self.url, self.expected = url, expected
        self.faults, self.n_ended, self.longest_s = [], 0, 0.0
        self.is_ending = threading.Event()
        self.threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(N_STREAMS)]
        for thread in self.threads:
            thread.start()

    def _run(self, idx):
        prompt = prompt_of(idx)
        while not self.is_ending.is_set() and not self.faults:
            try:
                text, longest_s = stream(self.url, prompt)
            except Exception as error:
                self.faults.append(f"{prompt!r}: {error!r}")
                return
            if text != self.expected[prompt]:
                self.faults.append(f"{prompt!r} was answered with {text!r}")
            self.longest_s = max(self.longest_s, longest_s)
            self.n_ended += 1

    def end(self):
        self.is_ending.set()
        for thread in self.threads:
            thread.join(2 * GAP_LIMIT_S)
            if thread.is_alive():
                self.faults.append("a stream hangs")


def prompt_of(idx):
    return f"Story number {idx}: the sailor"


def stream(url, prompt):
    """The text of a greedy stream, and the longest time without any of it."""
    body = {"model": "throng-starter", "prompt": prompt, "max_tokens": N_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    text, longest_s, last = "", 0.0, time.monotonic()
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=GAP_LIMIT_S) as answer:
        if answer.status_code != 200:
            raise RuntimeError(answer.read().decode())
        for line in answer.iter_lines():
            longest_s, last = max(longest_s, time.monotonic() - last), time.monotonic()
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(line)
            text += event["choices"][0]["text"]
    return text, longest_s


def members(url):
    """The gateway's workers: that of this host and the one on several hosts."""
    with contextlib.suppress(httpx.HTTPError):
        return {"here" if "127.0.0.1" in worker["url"] else "hosts": worker for worker in httpx.get(f"{url}/fleet", timeout=10).json()["workers"]}
    return {}


def wait_until_ready(url, streams=None):
    deadline = time.monotonic() + READY_LIMIT_S
    while True:
        found = members(url)
        if len(found) == 2 and all(worker["state"] == "ready" for worker in found.values()):
            return found
        assert time.monotonic() < deadline, f"not ready again: {found}, {streams and streams.faults}"
        time.sleep(0.1)


def mend(url, replica):
    """Has a worker run a step: ranks that were lost while it had nothing to do are started again then."""
    body = {"model": "throng-starter", "prompt": "The", "max_tokens": 2}
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(f"{url}/v1/completions", json=body, headers={"x-throng-replica": replica}, timeout=GAP_LIMIT_S)


def test_no_stream_hangs_fails_or_has_other_text(binary, tmp_path):
    print(f"seed {SEED}: THRONG_RANK_SEED={SEED} repeats it")
    rng = random.Random(SEED)
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(on_hosts(2, SEED))
        environment = {**os.environ, "THRONG_WORKER_TOKEN": TOKEN, "TEST_JOB": f"lost-{os.getpid()}", "TMPDIR": str(tmp_path)}
        environment["LD_LIBRARY_PATH"] = str(Path(MPIRUN).parent.parent / "lib")
        flags = ["--threads", "1", "--force"]
        here = free_port()
        shared = Worker([binary, "worker", "--listen", f"127.0.0.1:{here}", "-tp", "2", *flags], environment, tmp_path / "shared.log")
        stack.callback(shared.end)
        hosts = Hosts(network, environment["TEST_JOB"], binary)
        launcher = network.inside(0, MPIRUN, *OPTIONS, "-x", "THRONG_WORKER_TOKEN", "--prtemca", "plm_ssh_agent", agent_of(network, tmp_path))
        launcher += ["--host", ",".join(f"{address}:1" for address in network.addresses), "-n", "2"]
        job = Worker([*launcher, binary, "worker", "--listen", f"{network.addresses[0]}:9000", *flags], environment, tmp_path / "job.log", hosts)
        stack.callback(job.end)
        port = free_port()
        replicas = ["--replica", f"throng://127.0.0.1:{here}", "--replica", f"throng://{network.addresses[0]}:9000"]
        gateway = Worker([binary, "gateway", "--port", str(port), *replicas], environment, tmp_path / "gateway.log")
        stack.callback(gateway.end)
        url = f"http://127.0.0.1:{port}"
        found = wait_until_ready(url)
        assert found["here"]["fingerprint"] == found["hosts"]["fingerprint"]
        expected = {prompt_of(i): stream(url, prompt_of(i))[0] for i in range(N_STREAMS)}
        streams = Streams(url, expected)
        counts = {}
        for number in range(N_LOSSES):
            wait_until_ready(url, streams)
            time.sleep(rng.uniform(0.0, 1.5))
            how = rng.choice(["kill a rank", "stop a rank", "kill a worker", "kill a rank of the job", "stop a rank of the job", "cut a host off"])
            counts[how] = counts.get(how, 0) + 1
            before = (children(shared.process.pid), job.n_starts, shared.n_starts)
            ranks = hosts.ranks()
            if how in ("kill a rank", "stop a rank") and before[0]:
                os.kill(before[0][0], signal.SIGKILL if how == "kill a rank" else signal.SIGSTOP)
            elif how == "kill a worker":
                shared.process.kill()
            elif how == "cut a host off":
                network.cut(1)
            elif len(ranks) == 2:
                os.kill(rng.choice(ranks), signal.SIGKILL if how.startswith("kill") else signal.SIGSTOP)
            deadline = time.monotonic() + GAP_LIMIT_S
            while (children(shared.process.pid), job.n_starts, shared.n_starts) == before:
                assert time.monotonic() < deadline, f"loss {number} ({how}) was not noticed"
                assert not streams.faults, streams.faults
                time.sleep(0.05)
            network.mend()
            # One loss at a time.
            while not children(shared.process.pid) or children(shared.process.pid) == before[0] != [] and how.endswith("a rank"):
                assert time.monotonic() < deadline, f"loss {number} ({how}) was not mended"
                mend(url, f"127.0.0.1:{here}")
        wait_until_ready(url, streams)
        streams.end()
        print(f"{N_LOSSES} losses {counts}, {streams.n_ended} streams, longest pause {streams.longest_s:.2f} s")
        assert not streams.faults, f"seed {SEED}: {streams.faults}"
        assert streams.n_ended > 0
        for name, transport in {"here": "shared memory", "hosts": "MPI"}.items():
            ranks = members(url)[name]["ranks"]
            assert (ranks["tensor"], ranks["pipeline"], ranks["transport"]) == (2, 1, transport)
            assert 0 < ranks["communication_share"] <= 1
        table = subprocess.run([binary, "fleet", "status", "--url", url, "--once"], capture_output=True, text=True, check=True).stdout
        assert "2 (2 × 1), MPI" in table and "2 (2 × 1), shared memory" in table
