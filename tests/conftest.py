"""Starts the real binary for the tests of this folder: `pytest tests --throng target/debug/throng`."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).resolve().parent.parent
STARTUP_LIMIT_S = 120

# Fixtures of trained models.
sys.path.append(str(ROOT / "tests/real_models"))
pytest_plugins = ["models"]


def pytest_addoption(parser):
    parser.addoption("--throng", required=True, help="the binary to test")
    parser.addoption("--axe", help="axe.min.js of axe-core; without it, its test is skipped")
    parser.addoption("--llama-server", help="llama.cpp's server; without it and --gguf, its test is skipped")
    parser.addoption("--gguf", help="a model for it")
    parser.addoption("--nightly", action="store_true", help="also what takes long and seldom fails")
    parser.addoption("--prometheus", help="a Prometheus that scrapes it; without one, its test is skipped")


def pytest_collection_modifyitems(config, items):
    """Leaves out the tests marked `nightly` unless they are asked for."""
    if not config.getoption("--nightly"):
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=nightly)


def pytest_runtest_logreport(report):
    """Notes what is skipped for the last lines of `cargo xtask test`."""
    if report.skipped and (notes := os.environ.get("THRONG_SKIPPED_TESTS")):
        reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else "?"
        with open(notes, "a") as file:
            file.write(f"{report.nodeid}: {reason}\n")


class Server:
    """A running `throng serve` on a port of its own choice, ready to answer."""

    def __init__(self, binary, *arguments):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("THRONG_")}
        self.process = subprocess.Popen(
            [binary, "serve", *([] if "--port" in arguments else ["--port", "0"]), *map(str, arguments)],
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

    def _read(self, ready):
        for line in self.process.stdout:
            self.output.append(line)
            found = re.search(r"Serving on (http://127\.0\.0\.1:\d+)", line)
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


@pytest.fixture(scope="session")
def binary(request):
    return str(Path(request.config.getoption("--throng")).resolve())


@pytest.fixture(scope="session")
def start(binary):
    """Starts a server for the length of a `with`: `with start(MODEL, "--flag", value) as server`."""

    @contextlib.contextmanager
    def started(*arguments):
        server = Server(binary, *arguments)
        try:
            yield server
        finally:
            server.stop()

    return started


@pytest.fixture(scope="session")
def server(start):
    """One server with the starter model for all tests that do not change its state."""
    with start() as server:
        yield server


@pytest.fixture()
def client(server):
    return server.client()
