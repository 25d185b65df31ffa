"""Starts the real binary for the tests of this folder: `pytest tests --throng target/debug/throng`."""

import contextlib
import os
import sys
from pathlib import Path

import pytest
from servers import ROOT, Server

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
