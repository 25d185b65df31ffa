"""The page at `/` in a headless browser: a message is sent, and the streamed reply appears."""

import os

import pytest
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


@pytest.fixture(params=[(1280, 900), (390, 844)], ids=["desktop", "phone"])
def browser(request, tmp_path):
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in [*FLAGS, f"--user-data-dir={tmp_path}", "--window-size={},{}".format(*request.param)]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    yield driver
    driver.quit()


def test_a_message_is_answered_in_a_stream(browser, server):
    browser.get(server.url + "/")
    wait = WebDriverWait(browser, 30)
    box = wait.until(lambda page: page.find_element(By.CSS_SELECTOR, "textarea#prompt"))
    wait.until(lambda page: page.find_element(By.ID, "model").get_attribute("value") == "throng-starter")
    box.send_keys("Hello!", Keys.ENTER)
    replies = lambda page: page.find_elements(By.CSS_SELECTOR, ".message.assistant .text")
    wait.until(lambda page: replies(page) and replies(page)[-1].text.strip())
    figures = lambda page: page.find_elements(By.CSS_SELECTOR, ".message.assistant .stats")
    wait.until(lambda page: figures(page) and "tokens/s" in figures(page)[-1].text)
    assert "first token" in figures(browser)[-1].text
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    if screenshots := os.environ.get("THRONG_SCREENSHOTS"):
        browser.save_screenshot(f"{screenshots}/{browser.get_window_size()['width']}.png")
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []
