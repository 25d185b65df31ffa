"""Runs one attack against one server: starts both, measures, ends both. Knows no particular attack."""

import contextlib
import http.client
import multiprocessing
import os
import queue
import threading
import time
import traceback

import healthy
from attack import ATTACKS, Target
from measure import MIB, ProcessView, Sampler, settle
from server import NotStarted, Server
from verdict import Verdict

SPAWN = multiprocessing.get_context("spawn")
N_USUAL = 15
# Timeout where times are not judged: it is enough that the healthy client is served.
N_USUAL_QUICK = 3
QUICK_INTENSITY = 0.3
USUAL_LIMIT_S = 20
IDLE_LIMIT_S = 10
HEALTH_INTERVAL_S = 0.4
HEALTH_LIMIT_S = 10
TRUTH_LIMIT_S = 2


def attacking(name, target, claims):
    """The attacking process: runs the attack and sends its claims."""
    import families  # noqa: F401, PLC0415

    # A lower priority than the server and the healthy client, whose times are measured.
    os.nice(5)
    try:
        ATTACKS[name].run(target)
    except Exception:
        target.claim(False, "the attack itself failed: " + traceback.format_exc(limit=-4).strip().replace("\n", " | "))
    claims.send(target.claims)


def attack_until(attack, target, limit_s):
    """Runs an attack in a process of its own for at most that time; returns its claims."""
    ours, theirs = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=attacking, args=(attack.name, target, theirs), daemon=False)
    process.start()
    theirs.close()
    try:
        if not ours.poll(limit_s):
            return [(False, f"the attack did not end within {limit_s:.0f} s")]
        return ours.recv()
    except EOFError:
        return [(False, "the attacking process ended without a word")]
    finally:
        process.join(2)
        if process.is_alive():
            process.kill()
            process.join()


def ask_health(port, path="/health"):
    """Status and duration of a health check in seconds; status 0 without an answer."""
    started = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HEALTH_LIMIT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status, time.monotonic() - started
    except (OSError, http.client.HTTPException):
        return 0, time.monotonic() - started
    finally:
        connection.close()


class HealthWatch:
    """Checks the server's health continuously."""

    def __init__(self, port):
        self.port = port
        self.worst_s = 0.0
        self.statuses = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        while not self._stop.wait(HEALTH_INTERVAL_S):
            for path in ("/health/live", "/health"):
                status, seconds = ask_health(self.port, path)
                self.worst_s = max(self.worst_s, seconds)
                self.statuses.add(status)


class HealthyClient:
    """The healthy client's process and the samples it has sent."""

    def __init__(self, port, key, expected):
        self.samples = []
        self._queue = SPAWN.Queue()
        self._stop = SPAWN.Event()
        arguments = ("127.0.0.1", port, key, expected, self._stop, self._queue)
        self._process = SPAWN.Process(target=healthy.run, args=arguments, daemon=True)
        self._process.start()

    def read(self, wait_s=0.0):
        """Collects the samples; waits at most that time for the next one."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.samples.append(self._queue.get(timeout=wait_s) if wait_s else self._queue.get_nowait())
                wait_s = 0.0

    def wait_for(self, n, limit_s):
        end = time.monotonic() + limit_s
        while len(self.samples) < n and time.monotonic() < end:
            self.read(0.2)

    def stop(self):
        self._stop.set()
        end = time.monotonic() + healthy.LIMIT_S + 2
        while self._process.is_alive() and time.monotonic() < end:
            self.read(0.1)
        waited = self._process.is_alive()
        self._process.kill()
        self._process.join()
        self.read(0.1)
        if waited:
            # It began right after the last one ended; a stream's pings keep it from timing out by itself.
            last = self.samples[-1] if self.samples else healthy.Sample(end - healthy.LIMIT_S, 0.0)
            started = last.started + last.first_token_s
            seconds = time.monotonic() - started
            self.samples.append(healthy.Sample(started, seconds, f"no whole answer within {seconds:.0f} s"))


class Trial:
    """Runs attacks against one binary."""

    def __init__(self, binary, logs, is_quick=False):
        self.binary = str(binary)
        self.logs = logs
        self.is_quick = is_quick
        self._expected = None
        self._reserved = 0

    def references(self):
        """The healthy client's expected answers, requested once from a server without other load."""
        if self._expected is None:
            server = Server(self.binary, self.logs / "reference.log")
            self._expected = healthy.references("127.0.0.1", server.port)
            # For servers whose standard error cannot be read.
            self._reserved = server.reserved_bytes()
            server.stop()
        return self._expected

    def run(self, attack, seed):
        """Starts a server, attacks it, and returns the results."""
        started = time.monotonic()
        verdict = Verdict(attack, seed, judges_times=not self.is_quick)
        folder = self.logs / attack.name
        folder.mkdir(parents=True, exist_ok=True)
        intensity = QUICK_INTENSITY if self.is_quick else 1.0
        target = Target(binary=self.binary, folder=str(folder), seed=seed, intensity=intensity)
        if attack.alone:
            verdict.claims = attack_until(attack, target, attack.limit_s)
        else:
            try:
                self._attacked(attack, target, verdict)
            except NotStarted as error:
                verdict.exits.append(f"before it served: {error}"[:300])
        verdict.seconds = time.monotonic() - started
        return verdict

    def _attacked(self, attack, target, verdict):
        expected = self.references()
        log = self.logs / attack.name / "server.log"
        server = Server(self.binary, log, attack.arguments, attack.keys, attack.stderr, attack.descriptors)
        target.port, target.pid = server.port, server.pid
        target.key = attack.keys[1] if attack.keys else None
        key = attack.keys[0] if attack.keys else None
        try:
            self._watched(attack, target, verdict, server, HealthyClient(server.port, key, expected))
        finally:
            if not server.is_running():
                verdict.exits.append(f"status {server.process.returncode}: {server.log_text()[-300:]!r}")
            elif not target.wait_idle(0.2, n_others=0):
                # Otherwise its remaining work would have to be waited for.
                server.kill()
            elif server.stop() != 0:
                verdict.claims.append((False, f"after SIGTERM it ended with {server.process.returncode}, not 0"))

    def _watched(self, attack, target, verdict, server, client):
        view = ProcessView(server.pid, server.reserved_bytes() or self._reserved)
        client.wait_for(N_USUAL_QUICK if self.is_quick else N_USUAL, USUAL_LIMIT_S)
        usual = list(client.samples)
        idle, idle_anonymous = view.resident(), view.anonymous()
        verdict.descriptors, verdict.threads = (view.descriptors(),) * 3, (view.threads(),) * 3
        with Sampler(view) as sampler, HealthWatch(server.port) as health:
            begun = time.monotonic()
            verdict.claims = attack_until(attack, target, attack.limit_s)
            ended = time.monotonic()
            target.key = target.key and attack.keys[0]
            alive = server.is_running()
            if alive and not attack.disturbs_health:
                target.wait_idle(IDLE_LIMIT_S, n_others=1)
            client.read()
            client.stop()
        verdict.health_s = health.worst_s
        verdict.memory_mib = max(0, sampler.peak - idle) / MIB
        during = [sample for sample in client.samples if begun <= sample.started < ended]
        verdict.first_before_ms = healthy.median_ms(usual)
        verdict.first_during_ms, verdict.worst_during_ms = healthy.median_ms(during), healthy.worst_ms(during)
        verdict.n_healthy = len(client.samples)
        if not attack.disturbs_health:
            verdict.healthy_faults = [sample.fault for sample in client.samples if sample.fault]
            if alive and health.statuses - {200}:
                verdict.health_faults.append(f"health checks said {sorted(health.statuses)} (0: nothing)")
        if not alive:
            return
        self._after(target, verdict, view, sampler, idle, idle_anonymous)

    def _after(self, target, verdict, view, sampler, idle, idle_anonymous):
        truth = self._truth(target)
        if truth:
            verdict.health_faults.append(truth)
        before_fds, before_threads = verdict.descriptors[0], verdict.threads[0]
        verdict.left_mib = max(0, settle(view.resident, idle + 16 * MIB, 3) - idle) / MIB
        verdict.anonymous_mib = max(0, view.anonymous() - idle_anonymous) / MIB
        left = settle(view.descriptors, before_fds + 1, IDLE_LIMIT_S)
        verdict.descriptors = (before_fds, sampler.peak_descriptors, left)
        # Threads for blocking work end after ten seconds without work.
        left = settle(view.threads, before_threads + 8, IDLE_LIMIT_S + 2)
        verdict.threads = (before_threads, sampler.peak_threads, left)

    @staticmethod
    def _truth(target):
        """Whether chats and the health check agree, at the latest after two seconds."""
        end = time.monotonic() + TRUTH_LIMIT_S
        while True:
            chat, health = target.chat(timeout=20), ask_health(target.port)[0]
            if (chat.status == 200) == (health == 200):
                return None
            if time.monotonic() > end:
                return f"health says {health} while a chat gets {chat.status}"
            time.sleep(0.2)
