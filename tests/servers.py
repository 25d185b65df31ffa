"""A running `throng serve` for tests."""

import os
import re
import signal
import subprocess
import threading
from pathlib import Path

import openai

ROOT = Path(__file__).resolve().parent.parent
STARTUP_LIMIT_S = 120


class Server:
    """A running `throng serve` on a port of its own choice, ready to answer."""

    def __init__(self, binary, *arguments):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("THRONG_")}
        self.binary = binary
        environment = self.environment(environment)
        self.process = subprocess.Popen(
            self.command([binary, "serve", *([] if "--port" in arguments else ["--port", "0"]), *map(str, arguments)]),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        self.output = []
        self.url = None
        ready = threading.Event()
        threading.Thread(target=self._read, args=(ready,), daemon=True).start()
        if not ready.wait(STARTUP_LIMIT_S) or self.url is None:
            self.process.kill()
            raise RuntimeError("the server did not start:\n" + "".join(self.output))

    def command(self, line):
        """The command line that starts this one."""
        return line

    def environment(self, own):
        """The variables of the process."""
        return own

    def _read(self, ready):
        for line in self.process.stdout:
            self.output.append(line)
            found = re.search(r"Serving on (http://[\d.]+:\d+)", line)
            if found and not ready.is_set():
                self.url = found.group(1)
                ready.set()
        ready.set()

    def client(self, **options):
        """The official client library, configured for this server."""
        options = {"api_key": "none", "max_retries": 0, "timeout": 120, **options}
        return openai.OpenAI(base_url=self.url + "/v1", **options)

    def stop(self):
        """Ends the server with SIGTERM and returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
