"""Every attack mixed into healthy traffic for a given time: no growth of memory and descriptors, no failure of a
healthy request.
Knows no particular attack."""

import random
import statistics
import threading
import time

import healthy
from attack import Target
from measure import MIB, ProcessView, settle
from server import Server
from trial import HealthyClient, Trial, ask_health, attack_until

ROUND_S = 45
N_HEALTHY = 2
N_ATTACKERS = 2
INTENSITY = 0.3
# Growth allowed for the allocator, caches and metrics between the first quarter and the last.
MAX_GROWTH_MIB = 32
MAX_PEAK_MIB = 2 * 256
MAX_MORE_DESCRIPTORS = 4
QUIET_S = 2
HEALTHY_KEY, ATTACKER_KEY = KEYS = ("healthy-key", "attacker-key")


class Mixture:
    """Processes that run attacks in random order, one after the other, until a given time."""

    def __init__(self, attacks, target, seed):
        self.attacks, self.target, self.random = attacks, target, random.Random(seed)
        self.counts, self.faults = {}, {}

    def _attacker(self, seed, end):
        order = random.Random(seed)
        while time.monotonic() < end:
            attack = order.choice(self.attacks)
            target = Target(
                port=self.target.port,
                pid=self.target.pid,
                seed=order.randrange(1 << 32),
                intensity=INTENSITY,
                key=ATTACKER_KEY,
            )
            claims = attack_until(attack, target, attack.limit_s)
            self.counts[attack.name] = self.counts.get(attack.name, 0) + 1
            # Times and wasted work are not judged beside other attacks; an answer of 5xx to invalid input still is.
            for ok, text in claims:
                if not ok:
                    self.faults.setdefault(attack.name, f"seed {target.seed}: {text}")

    def round(self, seconds):
        end = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self._attacker, args=(self.random.randrange(1 << 32), end))
            for _ in range(N_ATTACKERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def run(options, attacks, seed):
    """Soaks one server, with a separate key for the attackers; returns the exit status of the program."""
    attacks = [a for a in attacks if not a.arguments and not a.descriptors and a.stderr == "file"]
    trial = Trial(options.binary, options.logs)
    expected = trial.references()
    server = Server(str(options.binary), options.logs / "soak.log", keys=KEYS)
    target = Target(port=server.port, pid=server.pid, key=HEALTHY_KEY)
    clients = [HealthyClient(server.port, HEALTHY_KEY, expected) for _ in range(N_HEALTHY)]
    view = ProcessView(server.pid, server.reserved_bytes())
    mixture = Mixture(attacks, target, seed)
    readings, started, peak = [], time.monotonic(), 0
    idle = view.resident()
    print(f"{len(attacks)} attacks, {N_ATTACKERS} at a time, {N_HEALTHY} healthy clients", flush=True)
    while time.monotonic() - started < options.soak * 60 and server.is_running():
        view.forget_peak()
        mixture.round(min(ROUND_S, options.soak * 60))
        if not server.is_running():
            break
        peak = max(peak, view.peak() - idle)
        readings.append(reading(target, view, clients))
        minutes = (time.monotonic() - started) / 60
        n, faults = totals(clients)
        memory, descriptors, threads = readings[-1]
        print(
            f"{minutes:6.1f} min  memory {(memory - idle) / MIB:+.0f} MiB above idle, peak so far {peak / MIB:+.0f}  fds {descriptors}"
            f"  threads {threads}  healthy {n}, faults {len(faults)}  attacks {sum(mixture.counts.values())}",
            flush=True,
        )
    alive, health = server.is_running(), ask_health(server.port)[0]
    for client in clients:
        client.stop()
    status = server.stop()
    return judge(mixture, clients, readings, peak, alive and health == 200 and status == 0, seed)


def reading(target, view, clients):
    """Memory, descriptors and threads once the attackers have ended and so have their requests."""
    target.wait_idle(60, n_others=len(clients))
    time.sleep(QUIET_S)
    for client in clients:
        client.read()
    descriptors = settle(view.descriptors, 0, QUIET_S)
    return view.resident(), descriptors, view.threads()


def totals(clients):
    """The number of healthy requests, and their failures."""
    samples = [sample for client in clients for sample in client.samples]
    return len(samples), [sample.fault for sample in samples if sample.fault]


def judge(mixture, clients, readings, peak, well, seed):
    """Prints the summary and returns the exit status."""
    n, faults = totals(clients)
    quarter = max(1, len(readings) // 4)
    # The first reading is of a server that has not seen every attack yet.
    first, last = readings[1 : 1 + quarter] or readings[:1], readings[-quarter:]
    growth, more = (
        (statistics.median(r[i] for r in last) - statistics.median(r[i] for r in first) for i in (0, 1))
        if first
        else (0, 0)
    )
    bounds = {
        f"memory grew by {growth / MIB:+.1f} MiB (at most {MAX_GROWTH_MIB})": growth <= MAX_GROWTH_MIB * MIB,
        f"peak {peak / MIB:.0f} MiB above idle with {N_ATTACKERS} attacks at a time (at most {MAX_PEAK_MIB})": peak
        <= MAX_PEAK_MIB * MIB,
        f"descriptors grew by {more:+.0f} (at most {MAX_MORE_DESCRIPTORS})": more <= MAX_MORE_DESCRIPTORS,
        f"healthy failures {len(faults)} of {n} {faults[:2] or ''}": n > 0 and not faults,
        "the server lived, was healthy and ended with status 0": well,
    }
    samples = [sample for client in clients for sample in client.samples]
    print(f"\nfirst tokens: median {healthy.median_ms(samples):.0f} ms, worst {healthy.worst_ms(samples):.0f} ms")
    print("attacks: " + ", ".join(f"{name} {count}" for name, count in sorted(mixture.counts.items())))
    for name, text in sorted(mixture.faults.items()):
        print(f"  noted (judged alone, not here): {name}: {text[:300]}")
    for text, ok in bounds.items():
        print(("PASS " if ok else "FAIL ") + text)
    print(f"seed {seed}")
    return 0 if all(bounds.values()) else 1
