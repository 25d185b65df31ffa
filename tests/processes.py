"""Processes that a test looks at from outside."""

import contextlib
from pathlib import Path


def children(pid):
    """The processes that the threads of a process have started and that were not waited for."""
    found = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        # Threads end while they are listed.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.update(int(child) for child in file.read_text().split())
    return sorted(found)
