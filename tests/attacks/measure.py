"""What the kernel says about a process: memory, descriptors, threads; sampled while something happens. Knows no HTTP.

Keys and values are reserved at the start and touched as they are used. They have a bound of their own, which the
server prints, so the pages of that reservation are not counted."""

import collections
import contextlib
import os
import re
import threading
import time

PAGE = os.sysconf("SC_PAGESIZE")
MIB = 1 << 20
INTERVAL_S = 0.02
PRESENT = bytes(range(128, 256))


class ProcessView:
    """A process seen through /proc."""

    def __init__(self, pid, reserved_bytes=0):
        self.pid = pid
        self.reserved = self._find_reserved(reserved_bytes)

    def _find_reserved(self, wanted):
        """The mappings of keys and values: one, or several of the same size, that add up to what was announced."""
        by_size = collections.defaultdict(list)
        for line in self._read("maps").splitlines():
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *$", line)
            if found:
                start, end = (int(part, 16) for part in found.groups())
                by_size[end - start].append((start, end))
        for size, ranges in by_size.items():
            n = round(wanted / size)
            if 0 < n <= len(ranges) and abs(n * size - wanted) <= wanted / 100:
                # Something else may happen to be as large: what is fullest at the start is not the reservation.
                return sorted(ranges, key=lambda r: self._present([r]))[:n]
        return []

    def _read(self, name):
        with open(f"/proc/{self.pid}/{name}") as file:
            return file.read()

    def exists(self):
        with contextlib.suppress(OSError):
            return "\nState:\tZ" not in self._read("status")
        return False

    def _present(self, ranges):
        """How many bytes of these ranges of addresses are in memory."""
        n_pages = 0
        with open(f"/proc/{self.pid}/pagemap", "rb", buffering=0) as pagemap:
            for start, end in ranges:
                pagemap.seek(start // PAGE * 8)
                # The highest bit of each entry of eight bytes says that the page is in memory.
                highest = pagemap.read((end - start) // PAGE * 8)[7::8]
                n_pages += len(highest) - len(highest.translate(None, PRESENT))
        return n_pages * PAGE

    def resident(self):
        """Bytes in memory without keys and values."""
        return int(self._read("statm").split()[1]) * PAGE - self._present(self.reserved)

    def anonymous(self):
        """Bytes of anonymous memory, keys and values among them."""
        return int(re.search(r"Anonymous: +(\d+)", self._read("smaps_rollup"))[1]) * 1024

    def forget_peak(self):
        """Starts the kernel's own peak anew."""
        with open(f"/proc/{self.pid}/clear_refs", "w") as file:
            file.write("5")

    def peak(self):
        """The kernel's peak without keys and values: exact when those were touched before it."""
        return int(re.search(r"VmHWM:\s+(\d+)", self._read("status"))[1]) * 1024 - self._present(self.reserved)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self):
        return int(re.search(r"Threads:\s+(\d+)", self._read("status"))[1])

    def cpu_seconds(self):
        fields = self._read("stat").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Sampler:
    """Peaks of memory, descriptors and threads between start and stop."""

    def __init__(self, view):
        self.view = view
        self.peak = self.peak_descriptors = self.peak_threads = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self.view.forget_peak()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(OSError, TypeError):
            self.peak = max(self.peak, self.view.peak())

    def _run(self):
        while not self._stop.wait(INTERVAL_S):
            with contextlib.suppress(OSError, TypeError):
                self.peak = max(self.peak, self.view.resident())
                self.peak_descriptors = max(self.peak_descriptors, self.view.descriptors())
                self.peak_threads = max(self.peak_threads, self.view.threads())


def settle(read, wanted, limit_s):
    """Waits until a figure is at most what is wanted; gives the smallest that was seen."""
    end = time.monotonic() + limit_s
    lowest = read()
    while lowest > wanted and time.monotonic() < end:
        time.sleep(0.1)
        lowest = min(lowest, read())
    return lowest
