"""The processor time that other programs used during a measurement. Linux only."""

import os
import resource
import time
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
CPUS = os.cpu_count()


def busy_s():
    """Seconds that all cores together have been busy so far, including time that a hypervisor gave to others
    (steal)."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) / TICK


def own_s(pids):
    """The part of those seconds of this process, the children it has waited for, and the running processes `pids`."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    for pid in pids:
        after_name = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        own += sum(int(field) for field in after_name[11:15]) / TICK
    return own


class Watch:
    """Counts from its construction; `pids` are servers that are part of the measurement."""

    def __init__(self, pids=()):
        self.pids = list(pids)
        self.start = (time.monotonic(), busy_s(), own_s(self.pids))

    def foreign(self):
        """The share of all cores that other programs or virtual machines used since."""
        at, busy, own = self.start
        others = busy_s() - busy - (own_s(self.pids) - own)
        return max(0.0, others / (CPUS * (time.monotonic() - at)))


def wait_until_quiet(most_foreign, patience_s, pids=()):
    """Waits until other programs use little of the machine for three seconds, up to a limit."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        watch = Watch(pids)
        time.sleep(3)
        if watch.foreign() <= most_foreign:
            return
