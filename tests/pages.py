"""Drives the page in a headless Chromium: the fixtures `browser` and `desktop`, and what tests wait for."""

import contextlib
import json

import pytest
import replay
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


PATIENCE_S = 30


def chromium(folder, size, *flags):
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in [*FLAGS, f"--user-data-dir={folder}", "--window-size={},{}".format(*size), *flags]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


@pytest.fixture(params=[(1280, 900), (390, 844)], ids=["desktop", "phone"])
def browser(request, tmp_path):
    driver = chromium(tmp_path, request.param)
    width, height = request.param
    if width < 500:  # A window cannot be as narrow as a phone.
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    yield driver
    driver.quit()


@pytest.fixture()
def desktop(tmp_path):
    # As another machine's page would be: without HTTPS, under a name that is not this machine's.
    driver = chromium(tmp_path, (1280, 900), "--host-resolver-rules=MAP throng.test 127.0.0.1")
    yield driver
    driver.quit()


def until(page, found):
    # An element may be made anew between being found and being read.
    return WebDriverWait(page, PATIENCE_S, ignored_exceptions=[StaleElementReferenceException]).until(found)


def all_of(selector):
    return lambda page: page.find_elements(By.CSS_SELECTOR, selector)


def text_of(selector):
    """The text of the last element that matches; empty without one."""
    return lambda page: "".join(element.text for element in all_of(selector)(page)[-1:])


def open_page(page, url):
    page.get(url + "/")
    until(page, lambda page: page.find_element(By.ID, "model").get_attribute("value") == "throng-starter")


def send(page, text):
    page.find_element(By.ID, "prompt").send_keys(text, Keys.ENTER)


def chat(page, text):
    """Sends a message and waits for the whole reply."""
    n_before = len(all_of(".message.assistant .stats")(page))
    send(page, text)
    until(page, lambda page: len(all_of(".message.assistant .stats")(page)) > n_before)


# Answers in a stream of the test's own, for what no model at hand says, or for what is looked at while it comes.
STREAM = """
const fetched = window.fetch;
const encoder = new TextEncoder();
window.fetch = (...arguments_) => String(arguments_[0]).includes("chat/completions")
  ? Promise.resolve(new Response(new ReadableStream({ start(controller) { window.stream = controller; } })))
  : fetched(...arguments_);
window.say = (delta, finish_reason = null) => window.stream.enqueue(
  encoder.encode(`data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason }] })}\\n\\n`)
);
window.end = () => { window.stream.enqueue(encoder.encode("data: [DONE]\\n\\n")); window.stream.close(); };
"""


def said(text, n_chars=16):
    """The parts in which a model of `replay.write` says a text: each is a token of its own and stands there once."""
    parts, at = [], 0
    while at < len(text):
        n = n_chars
        while text[at : at + n] in parts and at + n < len(text):
            n += 1
        parts.append(text[at : at + n])
        at += n
    while parts[-1] in parts[:-1]:
        parts[-2:] = ["".join(parts[-2:])]
    return parts


@pytest.fixture()
def saying(start, tmp_path):
    """Starts a server whose model gives a certain answer: `with saying(TEXT) as server`."""

    @contextlib.contextmanager
    def started(text, *arguments, n_chars=16):
        model = tmp_path / "says.gguf"
        parts = said(text, n_chars)
        replay.write(model, parts, added=parts)
        with start(model, *arguments) as server:
            yield server

    return started


def open_model(page, url):
    """Opens the page and waits until it has a model."""
    page.get(url + "/")
    until(page, lambda page: page.find_element(By.ID, "model").is_enabled())


def setting(page, **values):
    """Changes settings in the dialog: a text, a choice, or a box that is checked."""
    page.find_element(By.ID, "open-settings").click()
    for name, value in values.items():
        field = page.find_element(By.ID, name)
        if isinstance(value, bool):
            if field.is_selected() != value:
                field.click()
        elif field.tag_name == "select":
            page.execute_script(
                "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change'))", field, value
            )
        else:
            page.execute_script("arguments[0].value = arguments[1]", field, value)
    page.find_element(By.CSS_SELECTOR, "#settings .primary").click()
    until(page, lambda page: not page.find_elements(By.CSS_SELECTOR, "#settings[open]"))


def requested(page):
    """The addresses that the page, and not the browser, has requested since this was last called."""
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [one["request"]["url"] for one in sent if one["documentURL"].startswith("http")]


def complaints(page):
    """What the browser has complained of: exceptions, and violations of the content security policy among them."""
    return [entry["message"] for entry in page.get_log("browser") if entry["level"] == "SEVERE"]
