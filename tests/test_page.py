"""The page at `/` in a headless browser: chatting, and what it says when something is wrong."""

import os
from pathlib import Path

import pytest
from pages import PATIENCE_S, STREAM, all_of, chat, complaints, open_model, open_page, send, setting, text_of, until
from pages import browser, desktop, saying  # noqa: F401: fixtures
from ports import free_port
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from test_page_text import ANSWER


def test_a_message_is_answered_in_a_stream(browser, server):  # noqa: F811
    open_page(browser, server.url)
    send(browser, "Hello!")
    until(browser, text_of(".message.assistant .text"))
    until(browser, lambda page: "tokens/s" in text_of(".message.assistant .stats")(page))
    assert "first token" in text_of(".message.assistant .stats")(browser)
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    if screenshots := os.environ.get("THRONG_SCREENSHOTS"):
        browser.save_screenshot(f"{screenshots}/{browser.get_window_size()['width']}.png")
    assert complaints(browser) == []


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


def test_the_speed_is_the_server_s(desktop, server):  # noqa: F811
    open_page(desktop, server.url)
    desktop.execute_script(TIMINGS)
    chat(desktop, "Tell me a short story about a lamp.")
    rate = until(desktop, lambda page: page.execute_script(
        "return window.streamed?.match(/\"predicted_per_second\":([0-9.]+)/)?.[1]"
    ))
    rate = float(rate)
    shown = f"{rate:.1f}" if rate < 10 else str(int(rate + 0.5))
    assert f"{shown} tokens/s" in text_of(".stats")(desktop)


def test_copying_works_without_https(desktop, start):  # noqa: F811
    with start("--allowed-hosts", "throng.test") as server:
        open_page(desktop, server.url.replace("127.0.0.1", "throng.test"))
        assert not desktop.execute_script("return window.isSecureContext")
        chat(desktop, "Hello!")
        reply = text_of(".message.assistant .text")(desktop)
        until(desktop, all_of(".message.assistant .copy"))[0].click()
        until(desktop, lambda page: text_of(".message.assistant .copy")(page) == "Copied")
        box = desktop.find_element(By.ID, "prompt")
        box.send_keys(Keys.CONTROL, "v")
        assert box.get_attribute("value").split() == reply.split()


def test_a_missing_and_a_wrong_key_are_told_apart(desktop, start):  # noqa: F811
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


def test_a_dead_server_says_so_and_the_message_is_sent_when_it_is_back(desktop, start):  # noqa: F811
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
def test_axe_finds_nothing(request, browser, saying, scheme):  # noqa: F811
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

    def press(selector):
        browser.execute_script("arguments[0].click()", browser.find_element(By.CSS_SELECTOR, selector))

    with saying(ANSWER) as server:
        open_model(browser, server.url)
        assert violations() == []
        setting(browser, probabilities=True)
        chat(browser, "Hello!")
        assert violations() == []
        press(".regenerate")
        until(browser, all_of(".versions"))
        until(browser, all_of(".message.assistant .stats"))
        press(".show-tokens")
        browser.find_element(By.CSS_SELECTOR, ".token").send_keys(Keys.ARROW_RIGHT)
        press(".message.user .edit")
        if not browser.find_element(By.ID, "sidebar").is_displayed():
            press("#toggle-sidebar")
        assert violations() == []
        press("#open-settings")
        assert violations() == []
        press("#settings .primary")
        press("#open-shortcuts")
        assert violations() == []


def test_reasoning_is_shown_in_a_closed_part_while_it_comes(browser, server):  # noqa: F811
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
