"""Samples a process through the kernel: memory, descriptors, threads. Knows no HTTP.

The KV cache is reserved at the start and touched as it is used. It has a bound of its own, which the server prints,
so its pages are not counted."""

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
        """The mappings of the KV cache: one, or several of the same size, with the announced size in total."""
        by_size = collections.defaultdict(list)
        for line in self._read("maps").splitlines():
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *$", line)
            if found:
                start, end = (int(part, 16) for part in found.groups())
                by_size[end - start].append((start, end))
        for size, ranges in by_size.items():
            n = round(wanted / size)
            if 0 < n <= len(ranges) and abs(n * size - wanted) <= wanted / 100:
                # Another mapping may have the same size: the one with the most resident pages at the start is not the
                # KV cache.
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
        """The number of resident bytes in these address ranges."""
        n_pages = 0
        with open(f"/proc/{self.pid}/pagemap", "rb", buffering=0) as pagemap:
            for start, end in ranges:
                pagemap.seek(start // PAGE * 8)
                # The highest bit of each entry of eight bytes means that the page is resident.
                highest = pagemap.read((end - start) // PAGE * 8)[7::8]
                n_pages += len(highest) - len(highest.translate(None, PRESENT))
        return n_pages * PAGE

    def resident(self):
        """Resident bytes without the KV cache."""
        return int(self._read("statm").split()[1]) * PAGE - self._present(self.reserved)

    def anonymous(self):
        """Bytes of anonymous memory, including the KV cache."""
        return int(re.search(r"Anonymous: +(\d+)", self._read("smaps_rollup"))[1]) * 1024

    def forget_peak(self):
        """Resets the kernel's peak."""
        with open(f"/proc/{self.pid}/clear_refs", "w") as file:
            file.write("5")

    def peak(self):
        """The kernel's peak without the KV cache: exact if its pages were touched before the peak."""
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
    """Waits until a figure is at most the target; returns the smallest that was seen."""
    end = time.monotonic() + limit_s
    lowest = read()
    while lowest > wanted and time.monotonic() < end:
        time.sleep(0.1)
        lowest = min(lowest, read())
    return lowest
