"""The dashboard at `/dashboard` in a headless browser."""

from pathlib import Path

import pytest
from pages import PATIENCE_S, all_of, browser, desktop, text_of, until  # noqa: F401: fixtures
from selenium.webdriver.common.by import By
from test_roles import roles  # noqa: F401: a fixture

MESSAGES = [{"role": "user", "content": "Tell me a short story about a lamp."}]


def ask(server, **options):
    return server.client(**options).chat.completions.create(model="throng-starter", messages=MESSAGES, max_tokens=30)


def is_live(page):
    return "throng-starter" in text_of("#state-text")(page)


def test_it_shows_what_the_server_does_and_where_the_time_of_a_request_went(browser, server):  # noqa: F811
    browser.get(server.url + "/dashboard")
    until(browser, is_live)
    ask(server)
    # The time to the first token of what was asked meanwhile.
    until(browser, lambda page: "ms" in text_of(".tile:nth-child(2) .value")(page))
    assert len(all_of("figure svg.chart[aria-label]")(browser)) == 9
    until(browser, all_of("#requests button"))[0].click()
    until(browser, lambda page: "prefill" in text_of("#explanation")(page))
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []


def test_it_asks_for_a_key_and_says_when_the_server_is_gone(desktop, start):  # noqa: F811
    with start("--api-key", "clients-key", "--admin-key", "right-key") as server:
        desktop.get(server.url + "/dashboard")
        until(desktop, lambda page: page.find_element(By.ID, "key").is_displayed())
        key, show = desktop.find_element(By.ID, "key"), desktop.find_element(By.CSS_SELECTOR, "#key-form .primary")
        for other, error in [("wrong-key", "does not accept"), ("clients-key", "operator's")]:
            key.send_keys(other)
            show.click()
            until(desktop, lambda page, error=error: error in text_of("#key-error")(page))
            key.clear()
        key.send_keys("right-key")
        show.click()
        until(desktop, is_live)
    until(desktop, lambda page: "cannot be reached" in text_of("#state-text")(page))


def test_it_shows_workers_with_their_roles(desktop, roles):  # noqa: F811
    desktop.get(roles().url + "/dashboard")
    until(desktop, lambda page: {"prefill", "decode"} <= set(text_of("#workers")(page).split()))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(request, browser, server, scheme):  # noqa: F811
    program = request.config.getoption("--axe")
    if program is None:
        pytest.skip("needs --axe PATH")
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    browser.set_script_timeout(PATIENCE_S)
    ask(server)
    browser.get(server.url + "/dashboard")
    until(browser, is_live)
    until(browser, all_of("#requests button"))[0].click()
    until(browser, lambda page: "prefill" in text_of("#explanation")(page))
    browser.execute_script(Path(program).read_text())
    found = browser.execute_async_script("axe.run().then((result) => arguments[0](result.violations))")
    assert [(violation["id"], [node["html"] for node in violation["nodes"]]) for violation in found] == []
