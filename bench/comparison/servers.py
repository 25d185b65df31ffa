"""Starts, watches and ends the servers of the comparison."""

import http.client
import json
import os
import socket
import subprocess
import time
from pathlib import Path

PATIENCE_S = 300


class Server:
    """A server process on a free port of this machine, from ready until the end of the `with` block."""

    def __init__(self, command, log):
        """`command(port)` is the command line; what the server prints goes to the file `log`."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("w") as output:
            started = time.monotonic()
            words = [str(word) for word in command(self.port)]
            self.process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)
        try:
            self.await_health(started + PATIENCE_S)
        except BaseException:
            self.end()
            raise
        self.ready_s = time.monotonic() - started

    def await_health(self, end):
        while not self.is_healthy():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server did not start; see {self.log}")
            time.sleep(0.02)

    def is_healthy(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False

    def model(self):
        """The name of the first model that it serves."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        connection.request("GET", "/v1/models")
        return json.load(connection.getresponse())["data"][0]["id"]

    @property
    def pid(self):
        return self.process.pid

    def peak_mib(self):
        """Peak resident memory, including mapped files."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024

    def end(self):
        self.process.terminate()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def throng(settings, *arguments):
    """`throng serve` as a script's settings say (`throng`, `model`, `threads`), with more arguments. What it prints is dropped."""
    command = [settings.throng, "serve", *([settings.model] if settings.model else []), *arguments]
    command += ["--threads", settings.threads] if settings.threads else []
    return Server(lambda port: [*command, "--port", port], Path(os.devnull))
