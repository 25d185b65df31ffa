"""The page at `/` in a headless browser: chatting, and what it says when something is wrong."""

import os
from pathlib import Path

import pytest
from ports import free_port
from selenium import webdriver
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
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


@pytest.fixture(params=[(1280, 900), (390, 844)], ids=["desktop", "phone"])
def browser(request, tmp_path):
    driver = chromium(tmp_path, request.param)
    yield driver
    driver.quit()


@pytest.fixture()
def desktop(tmp_path):
    # As another machine's page would be: without HTTPS, under a name that is not this machine's.
    driver = chromium(tmp_path, (1280, 900), "--host-resolver-rules=MAP throng.test 127.0.0.1")
    yield driver
    driver.quit()


def until(page, found):
    return WebDriverWait(page, PATIENCE_S).until(found)


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


def test_a_message_is_answered_in_a_stream(browser, server):
    open_page(browser, server.url)
    send(browser, "Hello!")
    until(browser, text_of(".message.assistant .text"))
    until(browser, lambda page: "tokens/s" in text_of(".message.assistant .stats")(page))
    assert "first token" in text_of(".message.assistant .stats")(browser)
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    if screenshots := os.environ.get("THRONG_SCREENSHOTS"):
        browser.save_screenshot(f"{screenshots}/{browser.get_window_size()['width']}.png")
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []


TIMINGS = """
const fetched = window.fetch;
window.fetch = async (...arguments_) => {
  const response = await fetched(...arguments_);
  if (!String(arguments_[0]).includes("/chat/completions")) return response;
  const [ours, theirs] = response.body.tee();
  new Response(ours).text().then((text) => { window.streamed = text; });
  return new Response(theirs, response);
};
"""


def test_the_speed_is_the_server_s(desktop, server):
    open_page(desktop, server.url)
    desktop.execute_script(TIMINGS)
    chat(desktop, "Tell me a short story about a lamp.")
    rate = until(desktop, lambda page: page.execute_script(
        "return window.streamed?.match(/\"predicted_per_second\":([0-9.]+)/)?.[1]"
    ))
    rate = float(rate)
    shown = f"{rate:.1f}" if rate < 10 else str(int(rate + 0.5))
    assert f"{shown} tokens/s" in text_of(".stats")(desktop)


def test_copying_works_without_https(desktop, start):
    with start("--allowed-hosts", "throng.test") as server:
        open_page(desktop, server.url.replace("127.0.0.1", "throng.test"))
        assert not desktop.execute_script("return window.isSecureContext")
        chat(desktop, "Hello!")
        reply = text_of(".message.assistant .text")(desktop)
        until(desktop, all_of(".message.assistant footer button"))[0].click()
        until(desktop, lambda page: text_of(".message.assistant footer button")(page) == "Copied")
        box = desktop.find_element(By.ID, "prompt")
        box.send_keys(Keys.CONTROL, "v")
        assert box.get_attribute("value").split() == reply.split()


def test_a_missing_and_a_wrong_key_are_told_apart(desktop, start):
    with start("--api-key", "right-key") as server:
        desktop.get(server.url + "/")
        until(desktop, lambda page: "asks for a key" in text_of("#key-state")(page))
        key, done = desktop.find_element(By.ID, "key"), desktop.find_element(By.CSS_SELECTOR, "#settings .primary")
        key.send_keys("wrong-key")
        done.click()
        until(desktop, lambda page: "does not accept this key" in text_of("#key-state")(page))
        key.clear()
        key.send_keys("right-key")
        done.click()
        until(desktop, lambda page: page.find_element(By.ID, "model").get_attribute("value") == "throng-starter")
        chat(desktop, "Hello!")
        assert text_of(".message.assistant .text")(desktop)


def test_a_dead_server_says_so_and_the_message_is_sent_when_it_is_back(desktop, start):
    port = free_port()
    with start("--port", str(port)) as server:
        url = server.url
        open_page(desktop, url)
    send(desktop, "Hello!")
    until(desktop, lambda page: "cannot be reached" in text_of(".message.assistant .waiting")(page))
    with start("--port", str(port)):
        until(desktop, all_of(".message.assistant .stats"))
        assert text_of(".message.assistant .text")(desktop)
        assert not all_of(".message .waiting, .message .error")(desktop)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(request, browser, server, scheme):
    program = request.config.getoption("--axe")
    if program is None:
        pytest.skip("needs --axe PATH")
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    browser.set_script_timeout(PATIENCE_S)

    def violations():
        browser.execute_script(Path(program).read_text())
        found = browser.execute_async_script("axe.run().then((result) => arguments[0](result.violations))")
        return [(violation["id"], [node["html"] for node in violation["nodes"]]) for violation in found]

    open_page(browser, server.url)
    assert violations() == []
    chat(browser, "Hello!")
    assert violations() == []
    browser.find_element(By.ID, "open-settings").click()
    assert violations() == []


# The starter model does not reason: the stream is the test's own.
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


def test_reasoning_is_shown_in_a_closed_part_while_it_comes(browser, server):
    open_page(browser, server.url)
    browser.execute_script(STREAM)
    send(browser, "Hello!")
    until(browser, lambda page: page.execute_script("return Boolean(window.stream)"))
    summary = text_of(".message.assistant .reasoning summary")
    browser.execute_script("say({ reasoning: 'They greet' })")
    until(browser, lambda page: summary(page) == "Thinking…")
    browser.execute_script("say({ reasoning: ' me.' }); say({ content: 'Hi!' }); say({}, 'stop'); end()")
    until(browser, lambda page: summary(page) == "Reasoning")
    reasoning = browser.find_element(By.CSS_SELECTOR, ".message.assistant .reasoning")
    assert reasoning.get_attribute("open") is None
    reasoning.find_element(By.CSS_SELECTOR, "summary").click()
    assert text_of(".message.assistant .thought")(browser) == "They greet me."
    assert text_of(".message.assistant .text")(browser) == "Hi!"
