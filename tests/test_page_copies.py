"""Conversations of the page that are kept on the server too: two browsers with one key show the same."""

import subprocess

import pytest
from pages import all_of, chat, chromium, open_page, text_of, until
from selenium.webdriver.common.by import By

TITLES = "return [...document.querySelectorAll('#conversations .open .title')].map((title) => title.textContent)"


@pytest.fixture(scope="module")
def key_and_server(binary, start, tmp_path_factory):
    database = str(tmp_path_factory.mktemp("store") / "store.db")
    command = [binary, "keys", "create", "--database", database, "--organisation", "acme", "--project", "pages"]
    key = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    with start("--database", database) as server:
        yield key, server


@pytest.fixture()
def browsers(tmp_path):
    drivers = [chromium(tmp_path / name, (1280, 900)) for name in ("one", "two")]
    yield drivers
    for driver in drivers:
        driver.quit()


def open_with_copies(page, key, url):
    """Opens the page with a key and the setting that keeps conversations on the server."""
    page.get(url + "/")
    page.execute_script("sessionStorage.setItem('throng.key', arguments[0]);"
                        "localStorage.setItem('throng.copy', 'true')", f'"{key}"')
    open_page(page, url)
    until(page, lambda page: "on the server" in state(page))


def state(page):
    return page.execute_script("return document.getElementById('copy-state').textContent")


def shown_again(page):
    """Loads the page anew, which brings both sides together."""
    page.refresh()
    until(page, lambda page: page.find_element(By.ID, "model").get_attribute("value") == "throng-starter")
    until(page, lambda page: state(page).startswith("Conversations on the server"))


def copies(server, key):
    with server.client(api_key=key) as client:
        return [file for file in client.files.list(purpose="user_data")]


def test_two_browsers_show_the_same_conversations(browsers, key_and_server):
    key, server = key_and_server
    one, two = browsers
    open_with_copies(one, key, server.url)
    chat(one, "Hello!")
    answer = text_of(".message.assistant .text")(one)
    until(one, lambda _: len(copies(server, key)) == 1)
    shown_again(one)

    open_with_copies(two, key, server.url)
    until(two, lambda page: page.execute_script(TITLES) == ["Hello!"])
    two.find_element(By.CSS_SELECTOR, "#conversations .open").click()
    until(two, lambda page: text_of(".message.assistant .text")(page) == answer)

    # Both go on from the same message: each browser then has the messages of both.
    chat(two, "What is 7 plus 5?")
    chat(one, "What is 1 plus 1?")
    shown_again(two)
    shown_again(one)
    shown_again(two)
    for page in (one, two):
        questions = page.execute_async_script(
            "const done = arguments[0]; import('/ui/storage.js').then(async ({ BrowserStorage }) => {"
            "const storage = await BrowserStorage.open(); const [head] = await storage.conversations();"
            "const messages = await storage.messages(head.id);"
            "done(messages.filter(({ role }) => role === 'user').map(({ content }) => content)); })"
        )
        assert sorted(questions) == ["Hello!", "What is 1 plus 1?", "What is 7 plus 5?"]
    until(one, lambda _: len(copies(server, key)) == 1)

    # What is deleted in one goes in the other, and is no file any more.
    one.execute_script("document.querySelector('#open-settings').click()")
    for _ in range(2):
        one.find_element(By.ID, "delete-all").click()
    until(one, lambda _: [file.bytes for file in copies(server, key)] == [2])
    shown_again(two)
    assert two.execute_script(TITLES) == []
    assert not all_of("#conversations .open")(two)


def test_without_a_database_the_page_says_that_nothing_is_copied(browsers, server):
    page = browsers[0]
    page.get(server.url + "/")
    page.execute_script("localStorage.setItem('throng.copy', 'true')")
    open_page(page, server.url)
    until(page, lambda page: state(page).startswith("Not on the server: "))
    chat(page, "Hello!")
    assert page.execute_script(TITLES) == ["Hello!"]
