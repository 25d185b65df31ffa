"""Starts and ends the real binary. Knows no attack."""

import contextlib
import os
import re
import resource
import select
import signal
import subprocess
import time

from attack import ADMIN_KEY

STARTUP_LIMIT_S = 60
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class NotStarted(Exception):
    """The server did not become ready."""


class Server:
    """A running `throng serve` on a free port; its standard error goes to a file, unless specified otherwise."""

    def __init__(
        self,
        binary,
        log,
        arguments=(),
        keys=(),
        stderr="file",
        descriptors=None,
        environment=None,
        address_space=None,
        startup_limit_s=STARTUP_LIMIT_S,
    ):
        variables = {name: value for name, value in os.environ.items() if not name.startswith("THRONG_")}
        variables.update(environment or {})
        keys = [part for key in keys for part in ("--api-key", key)]
        keys += ["--admin-key", ADMIN_KEY] if keys else []
        self.log = log
        log_file = open(log, "wb") if stderr != "full" else open("/dev/full", "wb")
        reader, writer = os.pipe()

        def prepare():
            # Under nohup, SIGHUP is ignored; the server must not inherit that.
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            if descriptors:
                resource.setrlimit(resource.RLIMIT_NOFILE, descriptors)
            if address_space:
                # Allocating all memory of the machine fails instead.
                resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))

        with log_file:
            self.process = subprocess.Popen(
                [binary, "serve", *map(str, arguments), *keys, "--port", "0"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=writer if stderr == "broken" else log_file,
                env=variables,
                preexec_fn=prepare,
            )
        os.close(writer)
        try:
            self.port = self._wait_for_port(startup_limit_s)
        finally:
            # With stderr="broken", the reader of standard error is closed now.
            os.close(reader)
        self.pid = self.process.pid

    def _wait_for_port(self, limit_s):
        output, end = b"", time.monotonic() + limit_s
        while time.monotonic() < end:
            if select.select([self.process.stdout], [], [], 0.5)[0]:
                data = os.read(self.process.stdout.fileno(), 65536)
                output += data
                found = re.search(rb"http://127\.0\.0\.1:(\d+)|http://0\.0\.0\.0:(\d+)", output)
                if found:
                    return int(found[1] or found[2])
                if not data:
                    break
        self.kill()
        raise NotStarted(f"status {self.process.returncode}: {output.decode(errors='replace')}{self.log_text()}")

    def log_text(self):
        with contextlib.suppress(OSError), open(self.log, errors="replace") as file:
            return file.read()[-20_000:]
        return ""

    def reserved_bytes(self):
        """The size of the KV cache that the server announced; 0 if its standard error cannot be read."""
        found = re.search(r"keys and values: ([\d.]+) ([KMG]iB)", self.log_text())
        return int(float(found[1]) * UNITS[found[2]]) if found else 0

    def is_running(self):
        return self.process.poll() is None

    def stop(self, limit_s=40):
        """Ends the server with SIGTERM; returns its exit status, or None if it had to be killed."""
        if self.is_running():
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        finally:
            self.process.stdout.close()

    def kill(self):
        self.process.kill()
        self.process.wait()
