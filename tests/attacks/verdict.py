"""The bounds that an attack is judged by, and the printed result. Knows neither servers nor processes."""

from dataclasses import dataclass, field

MIB = 1 << 20
MAX_MEMORY_MIB = 256
# The allocator keeps some freed memory for the next request.
MAX_LEFT_MIB = 128
MAX_LEFT_DESCRIPTORS = 4
# Threads for blocking work stay for a while after it.
MAX_LEFT_THREADS = 16
FIRST_TOKEN_FACTOR = 2
# The machine is shared with the attacker and other programs.
FIRST_TOKEN_SLACK_MS = 100
# No healthy request may wait longer than this, however busy the machine is.
MAX_FIRST_TOKEN_MS = 3000
MAX_HEALTH_S = 2


@dataclass
class Verdict:
    """All measurements of one attack."""

    attack: object
    seed: int
    judges_times: bool = True
    seconds: float = 0.0
    memory_mib: float = 0.0
    left_mib: float = 0.0
    anonymous_mib: float = 0.0
    first_before_ms: float = None
    first_during_ms: float = None
    worst_during_ms: float = None
    n_healthy: int = 0
    healthy_faults: list = field(default_factory=list)
    exits: list = field(default_factory=list)
    health_s: float = 0.0
    health_faults: list = field(default_factory=list)
    descriptors: tuple = (0, 0, 0)
    threads: tuple = (0, 0, 0)
    claims: list = field(default_factory=list)

    def faults(self):
        """The bounds that were exceeded, as text."""
        found = [f"the server ended: {text}" for text in self.exits]
        found += [
            f"healthy client ({len(self.healthy_faults)} of {self.n_healthy} requests): {text}"
            for text in self.healthy_faults[:1]
        ]
        found += self.health_faults[:2]
        if not self.attack.alone:
            found += self._resources()
            found += self._times()
        return found + [text for ok, text in self.claims if not ok]

    def _resources(self):
        if self.memory_mib > MAX_MEMORY_MIB:
            yield f"{self.memory_mib:.0f} MiB above idle (at most {MAX_MEMORY_MIB})"
        if self.left_mib > MAX_LEFT_MIB:
            yield f"{self.left_mib:.0f} MiB above idle stay (at most {MAX_LEFT_MIB})"
        if self.descriptors[2] - self.descriptors[0] > MAX_LEFT_DESCRIPTORS:
            yield f"{self.descriptors[2] - self.descriptors[0]} descriptors stay (at most {MAX_LEFT_DESCRIPTORS})"
        if self.threads[2] - self.threads[0] > MAX_LEFT_THREADS:
            yield f"{self.threads[2] - self.threads[0]} threads stay (at most {MAX_LEFT_THREADS})"

    def _times(self):
        if not self.judges_times or self.attack.disturbs_health:
            return
        # Clients with the same key share its place in the queue; another key's work may only slow down steps.
        if not self.attack.is_load and None not in (self.first_before_ms, self.first_during_ms):
            usual = self.first_before_ms
            bound = max(FIRST_TOKEN_FACTOR * usual, usual + FIRST_TOKEN_SLACK_MS)
            if self.first_during_ms > bound:
                yield f"first token {self.first_during_ms:.0f} ms (at most {bound:.0f}; usually {usual:.0f})"
        if (not self.attack.is_load or self.attack.keys) and (self.worst_during_ms or 0) > MAX_FIRST_TOKEN_MS:
            yield f"a first token came after {self.worst_during_ms:.0f} ms (at most {MAX_FIRST_TOKEN_MS})"
        if self.health_s > MAX_HEALTH_S:
            yield f"a health check took {self.health_s:.1f} s (at most {MAX_HEALTH_S})"

    def passed(self):
        return not self.faults()

    def text(self):
        """One line of figures, then exceeded bounds and claims."""
        mark = "PASS" if self.passed() else "FAIL"
        line = f"{mark} {self.attack.name:32} seed {self.seed}"
        if not self.attack.alone:
            line += f"  memory +{self.memory_mib:.0f} MiB, after +{self.left_mib:.0f} (all anonymous +{self.anonymous_mib:.0f})"
            line += f"  first token {shown(self.first_before_ms)} -> {shown(self.first_during_ms)} ms"
            line += f", worst {shown(self.worst_during_ms)}"
            line += f"  healthy faults {len(self.healthy_faults)}/{self.n_healthy}  exits {len(self.exits)}"
            line += f"  health {'lies' if self.health_faults else 'true'} <= {self.health_s:.2f} s"
            line += "  fds {}..{}..{}".format(*self.descriptors) + "  threads {}..{}..{}".format(*self.threads)
        line += f"  {self.seconds:.1f} s"
        faults = self.faults()
        lines = [line, *(f"     broken: {text}" for text in faults)]
        lines += [f"     {text}" for ok, text in self.claims if ok]
        if faults:
            lines.append(f"     again: cargo xtask attack --only {self.attack.name} --seed {self.seed}")
        return "\n".join(lines)


def shown(milliseconds):
    return "-" if milliseconds is None else f"{milliseconds:.0f}"
