"""Conversations of the page that are kept on the server too: two browsers with one key show the same."""

import subprocess
import uuid

import pytest
from pages import all_of, chat, chromium, open_page, text_of, until
from selenium.webdriver.common.by import By

HOUR_MS = 60 * 60 * 1000
# Runs a script with the page's own modules, as the page does with its setting.
SCRIPT = """
const done = arguments[arguments.length - 1], [key, given] = arguments;
(async () => {
  const [{ BrowserStorage }, { CopiedStorage }, { newId }, server] = await Promise.all(
    ["storage", "server_copy", "conversation", "server"].map((name) => import(`/ui/${name}.js`)));
  const storage = await BrowserStorage.open(), states = [];
  const copied = new CopiedStorage(storage, { key: () => key, onState: (...state) => states.push(state) });
  const conversation = (title) =>
    ({ id: newId(), title, created: 1, updated: Date.now(), leaf: null, system: "", model: "" });
  let last = Date.now();
  const message = ({ id }, content) =>
    ({ id: newId(), conversation: id, parent: null, role: "user", content, created: ++last });
  const write = (head, change, messages) => server.writeFile(
    key, `throng-conversation-${head.id}-${change}.json`, JSON.stringify({ ...head, messages }));
  const copies = async () => {
    const found = [];
    for await (const { id, filename } of server.listFiles(key)) {
      const { title, messages } = await server.readFile(key, id);
      found.push({ isMark: filename.includes("deleted"), title, texts: messages?.map(({ content }) => content).sort() });
    }
    return found;
  };
  const kept = async () => Promise.all((await storage.conversations()).map(async ({ id, title }) =>
    ({ title, texts: (await storage.messages(id)).map(({ content }) => content).sort() })));
  %s
})().then(done, (error) => done(`failed: ${error.stack}`));
"""
TITLES = "return [...document.querySelectorAll('#conversations .open .title')].map((title) => title.textContent)"


@pytest.fixture(scope="module")
def database_and_server(start, tmp_path_factory):
    database = str(tmp_path_factory.mktemp("store") / "store.db")
    with start("--database", database) as server:
        yield database, server


@pytest.fixture()
def key_and_server(binary, database_and_server):
    """A key of a project of its own, and the server."""
    database, server = database_and_server
    command = [binary, "keys", "create", "--database", database, "--organisation", "acme", "--project", uuid.uuid4().hex]
    yield subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip(), server


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


def run(page, key, script, given=None):
    """The result of a script that runs with the page's modules."""
    result = page.execute_async_script(SCRIPT % script, key, given)
    assert not str(result).startswith("failed: "), result
    return result


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


def test_a_change_during_a_copy_is_copied_too(browsers, key_and_server):
    key, server = key_and_server
    page = browsers[0]
    page.get(server.url + "/")
    found = run(page, key, """
      const head = conversation("first"), send = window.fetch;
      await copied.save(head, [message(head, "one")]);
      window.fetch = async (url, request) => {
        if (request.method === "POST") {
          window.fetch = send;
          await copied.save({ ...head, title: "second" }, [message(head, "two")]);
        }
        return send(url, request);
      };
      await copied.flush();
      await copied.flush();
      return copies();
    """)
    assert found == [{"isMark": False, "title": "second", "texts": ["one", "two"]}]


def test_a_deletion_waits_until_the_server_can_be_reached(browsers, key_and_server):
    key, server = key_and_server
    page = browsers[0]
    page.get(server.url + "/")
    run(page, key, """
      const head = conversation("deleted");
      await copied.save(head, [message(head, "one")]);
      await copied.flush();
      window.fetch = () => Promise.reject(new TypeError("Failed to fetch"));
      await copied.remove(head.id);
      await copied.work;
    """)
    assert [file.bytes > 2 for file in copies(server, key)] == [True]
    page.get(server.url + "/")
    marked = [[{"isMark": True, "title": None, "texts": None}], []]
    synchronize = "await copied.synchronize(true); return [await copies(), await kept()]"
    assert run(page, key, synchronize) == marked
    # A copy of before the deletion, from a browser that did not know of it.
    run(page, key, """
      for await (const { filename } of server.listFiles(key)) {
        const head = { ...conversation("deleted"), id: filename.split("-")[2] };
        await write(head, 1, [message(head, "one")]);
      }
    """)
    assert run(page, key, synchronize) == marked


def test_copies_that_browsers_wrote_at_the_same_time_are_all_read(browsers, key_and_server):
    key, server = key_and_server
    page = browsers[0]
    page.get(server.url + "/")
    found = run(page, key, """
      const head = conversation("begun");
      await copied.save(head, [message(head, "own")]);
      for (const text of ["one", "two", "three"]) {
        await write({ ...head, title: text }, ++last + given, [message(head, text)]);
      }
      await copied.flush();
      return [await copies(), await kept()];
    """, HOUR_MS)
    whole = {"title": "three", "texts": ["one", "own", "three", "two"]}
    assert found == [[{"isMark": False, **whole}], [whole]]


def test_a_bad_copy_does_not_keep_the_others_from_being_read(browsers, key_and_server):
    key, server = key_and_server
    page = browsers[0]
    page.get(server.url + "/")
    states, found = run(page, key, """
      const [good, bad, other] = ["good", "bad", "other"].map(conversation);
      const tokens = [["a", 0, 1]];
      await write(good, 1, [{ ...message(good, "one"), tokens }]);
      await write({ ...bad, title: 5 }, last + given, []);
      const misnamed = JSON.stringify({ ...other, id: newId(), messages: [] });
      await server.writeFile(key, `throng-conversation-${other.id}-${last + given}.json`, misnamed);
      await copied.save(other, [message(other, "two")]);
      await copied.synchronize(true);
      return [states, await kept()];
    """, HOUR_MS)
    assert [is_fault for _, is_fault in states] == [True]
    assert sorted(one["title"] for one in found) == ["good", "other"]


def test_a_change_is_later_than_one_of_a_browser_whose_clock_is_ahead(browsers, key_and_server):
    key, server = key_and_server
    page = browsers[0]
    page.get(server.url + "/")
    found = run(page, key, """
      const head = conversation("theirs");
      await write(head, last + given, [message(head, "one")]);
      await copied.synchronize(true);
      await copied.save({ ...head, title: "mine" }, []);
      await copied.flush();
      return [await copies(), await kept()];
    """, HOUR_MS)
    mine = {"title": "mine", "texts": ["one"]}
    assert found == [[{"isMark": False, **mine}], [mine]]


@pytest.mark.parametrize("is_changed", [False, True], ids=["unchanged", "changed"])
def test_a_deletion_covers_what_its_browser_had_whatever_the_clocks_say(browsers, key_and_server, is_changed):
    key, server = key_and_server
    for page in browsers:
        page.get(server.url + "/")
    one, two = browsers
    # Its last change is an hour ahead of the server's clock.
    run(one, key, """
      const head = conversation("deleted");
      await write(head, last + given, [message(head, "one")]);
      await copied.synchronize(true);
    """, HOUR_MS)
    run(two, key, """
      await copied.synchronize(true);
      const [head] = await copied.conversations();
      if (given) await copied.save({ ...head, title: "changed" }, [message(head, "two")]);
    """, is_changed)
    run(one, key, "await copied.remove((await copied.conversations())[0].id); await copied.work")
    found = run(two, key, "await copied.synchronize(true); return [await copies(), await kept()]")
    changed = {"title": "changed", "texts": ["one", "two"]}
    marked = [[{"isMark": True, "title": None, "texts": None}], []]
    assert found == ([[{"isMark": False, **changed}], [changed]] if is_changed else marked)
