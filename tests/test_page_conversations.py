"""Conversations of the page: kept, listed, searched, edited, regenerated, continued, exported and imported."""

import json

import pytest
from pages import STREAM, all_of, chat, complaints, open_model, open_page, send, setting, text_of, until
from pages import browser, desktop, saying  # noqa: F401: fixtures
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

REQUESTS = """
window.bodies = [];
const fetched = window.fetch;
window.fetch = (...arguments_) => {
  if (String(arguments_[0]).includes("chat/completions")) window.bodies.push(JSON.parse(arguments_[1].body));
  return fetched(...arguments_);
};
"""

TITLES = "#conversations .open .title"


def titles(page):
    return page.execute_script("return [...document.querySelectorAll(arguments[0])].map((title) => title.textContent)", TITLES)


def hover_click(page, selector):
    """Presses a button that shows only when its row is pointed at."""
    page.execute_script("arguments[0].focus(); arguments[0].click()", page.find_element(By.CSS_SELECTOR, selector))


def kept(page):
    """All conversations as an export has them."""
    return json.loads(page.execute_async_script(
        "const done = arguments[0]; Promise.all([import('/ui/storage.js'), import('/ui/transfer.js')]).then("
        "async ([{ BrowserStorage }, { exportText }]) => { const storage = await BrowserStorage.open();"
        "done(await exportText(storage, await storage.conversations())); })"
    ))["conversations"]


def imported(page, content, tmp_path):
    file = tmp_path / "import.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    page.execute_script("document.getElementById('import-file').hidden = false")
    if not all_of("#settings[open]")(page):
        page.find_element(By.ID, "open-settings").click()
    page.execute_script("document.getElementById('transfer-state').textContent = ''")
    page.find_element(By.ID, "import-file").send_keys(str(file))
    return until(page, text_of("#transfer-state"))


def conversation(title, *texts, updated=1, parents=None):
    messages = [
        {"id": f"{title}{i}", "parent": f"{title}{i - 1}" if i else None, "role": ["user", "assistant"][i % 2], "content": text, "created": i}
        for i, text in enumerate(texts)
    ]
    return {"title": title, "updated": updated, "messages": messages, "leaf": messages[-1]["id"] if messages else None}


def file_of(*conversations):
    return {"format": "throng-conversations", "version": 1, "conversations": conversations}


def test_conversations_are_kept_listed_renamed_and_deleted(browser, server):  # noqa: F811
    open_page(browser, server.url)
    chat(browser, "Hello!")
    answer = text_of(".message.assistant .text")(browser)
    browser.find_element(By.ID, "new").click()
    assert not all_of(".message")(browser)
    chat(browser, "What is 7 plus 5?")
    # They are there when the page is loaded anew, the open one on the page.
    browser.refresh()
    until(browser, all_of(".message.assistant .stats"))
    assert text_of(".message.user .text")(browser) == "What is 7 plus 5?"
    if not browser.find_element(By.ID, "sidebar").is_displayed():
        browser.find_element(By.ID, "toggle-sidebar").click()
    until(browser, lambda page: titles(page) == ["What is 7 plus 5?", "Hello!"])
    all_of("#conversations .open")(browser)[1].click()
    until(browser, lambda page: text_of(".message.assistant .text")(page) == answer)
    if not browser.find_element(By.ID, "sidebar").is_displayed():
        browser.find_element(By.ID, "toggle-sidebar").click()
    hover_click(browser, "#conversations li:nth-child(2) [aria-label^=Rename]")
    browser.switch_to.active_element.send_keys(Keys.CONTROL, "a")
    browser.switch_to.active_element.send_keys("A greeting", Keys.ENTER)
    until(browser, lambda page: "A greeting" in titles(page))
    # A deletion asks once.
    hover_click(browser, "#conversations li.current [aria-label^=Delete]")
    assert len(titles(browser)) == 2
    hover_click(browser, "#conversations li.current [aria-label^=Delete]")
    until(browser, lambda page: titles(page) == ["What is 7 plus 5?"])
    assert [one["title"] for one in kept(browser)] == ["What is 7 plus 5?"] and not all_of(".message")(browser)
    assert complaints(browser) == []


def test_an_edited_question_is_a_branch_and_the_other_stays(desktop, server):  # noqa: F811
    open_page(desktop, server.url)
    desktop.execute_script(REQUESTS)
    chat(desktop, "What is 7 plus 5?")
    chat(desktop, "Hello!")
    hover_click(desktop, ".message.user .edit")
    box = desktop.find_element(By.CSS_SELECTOR, ".editor textarea")
    assert box.get_attribute("value") == "What is 7 plus 5?"
    box.clear()
    box.send_keys("What is 1 plus 1?", Keys.CONTROL, Keys.ENTER)
    until(desktop, lambda page: text_of(".versions .count")(page) == "2/2")
    until(desktop, all_of(".message.assistant .stats"))
    assert len(all_of(".message")(desktop)) == 2
    assert [one["content"] for one in desktop.execute_script("return window.bodies.at(-1).messages")] == ["What is 1 plus 1?"]
    desktop.find_element(By.CSS_SELECTOR, "[aria-label='Previous version']").click()
    until(desktop, lambda page: len(all_of(".message")(page)) == 4)
    assert text_of(".versions .count")(desktop) == "1/2"
    # Which one is shown is kept too.
    desktop.refresh()
    until(desktop, lambda page: len(all_of(".message.assistant .stats")(page)) == 2)


def test_an_answer_is_regenerated_edited_and_continued(desktop, saying):  # noqa: F811
    with saying("One two three four five six seven eight nine ten.", n_chars=5) as server:
        open_model(desktop, server.url)
        setting(desktop, max_tokens="3")
        chat(desktop, "Count!")
        assert "cut at the limit" in text_of(".stats")(desktop)
        first = text_of(".message.assistant .text")(desktop)
        desktop.find_element(By.CSS_SELECTOR, ".regenerate").click()
        until(desktop, lambda page: text_of(".versions .count")(page) == "2/2")
        until(desktop, all_of(".message.assistant .stats"))
        setting(desktop, max_tokens="")
        desktop.find_element(By.CSS_SELECTOR, ".resume").click()
        until(desktop, lambda page: text_of(".message.assistant .text")(page) == "One two three four five six seven eight nine ten.")
        until(desktop, all_of(".message.assistant .stats"))
        assert text_of(".message.assistant .text")(desktop).startswith(first) and not all_of(".resume")(desktop)
        desktop.find_element(By.CSS_SELECTOR, ".message.assistant .edit").click()
        box = desktop.find_element(By.CSS_SELECTOR, ".editor textarea")
        box.clear()
        box.send_keys("Eleven.")
        desktop.find_element(By.CSS_SELECTOR, ".editor .primary").click()
        until(desktop, lambda page: text_of(".message.assistant .text")(page) == "Eleven.")
        assert text_of(".versions .count")(desktop) == "3/3"
        contents = [message["content"] for message in kept(desktop)[0]["messages"]]
        assert contents == ["Count!", first, "One two three four five six seven eight nine ten.", "Eleven."]


def test_search_finds_titles_and_messages_and_shows_the_branch(desktop, server, tmp_path):  # noqa: F811
    open_page(desktop, server.url)
    branched = conversation("Trees", "Which trees?", "Oaks and elms.", updated=3)
    branched["messages"].append({"id": "b", "parent": "Trees0", "role": "assistant", "content": "Only the Ginkgo.", "created": 9})
    branched["leaf"] = "Trees1"
    others = [conversation(f"Talk {i}", "Hi", f"Answer {i}.", updated=2) for i in range(60)]
    assert imported(desktop, file_of(branched, *others), tmp_path) == "Imported: 61"
    desktop.find_element(By.CSS_SELECTOR, "#settings .primary").click()
    search = desktop.find_element(By.ID, "search")
    search.send_keys("ginkgo")
    until(desktop, lambda page: titles(page) == ["Trees"])
    assert "Only the Ginkgo" in text_of("#conversations .snippet")(desktop)
    search.send_keys(Keys.ARROW_DOWN)
    desktop.switch_to.active_element.send_keys(Keys.ENTER)
    until(desktop, lambda page: text_of(".message.assistant .text")(page) == "Only the Ginkgo.")
    search.clear()
    search.send_keys("talk")
    until(desktop, lambda page: len(titles(page)) == 50)
    search.send_keys("ative")
    until(desktop, lambda page: "Nothing found." in text_of("#conversations .hint")(page))
    assert complaints(desktop) == []


def test_system_prompts_are_sent_saved_and_belong_to_their_conversation(desktop, server):  # noqa: F811
    open_page(desktop, server.url)
    desktop.execute_script(REQUESTS)
    setting(desktop, system="You are a pirate.")
    chat(desktop, "Hello!")
    assert desktop.execute_script("return bodies.at(-1).messages[0]") == {"role": "system", "content": "You are a pirate."}
    desktop.find_element(By.ID, "open-settings").click()
    desktop.find_element(By.ID, "save-prompt").click()
    desktop.find_element(By.CSS_SELECTOR, "#settings .primary").click()
    desktop.find_element(By.ID, "new").click()
    setting(desktop, system="")
    chat(desktop, "What is 7 plus 5?")
    assert desktop.execute_script("return bodies.at(-1).messages.length") == 1
    setting(desktop, **{"saved-prompts": "You are a pirate."})
    chat(desktop, "Hello!")
    assert desktop.execute_script("return bodies.at(-1).messages[0].content") == "You are a pirate."
    assert [one["system"] for one in kept(desktop)] == ["You are a pirate."] * 2


def test_an_export_comes_back_by_an_import(desktop, server, tmp_path):  # noqa: F811
    open_page(desktop, server.url)
    setting(desktop, probabilities=True)
    chat(desktop, "What is 7 plus 5?")
    hover_click(desktop, ".message.assistant .regenerate")
    until(desktop, lambda page: text_of(".versions .count")(page) == "2/2")
    until(desktop, all_of(".message.assistant .stats"))
    before = kept(desktop)
    folder = tmp_path / "downloads"
    folder.mkdir()
    desktop.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    desktop.find_element(By.ID, "open-settings").click()
    desktop.find_element(By.ID, "export").click()
    file = until(desktop, lambda page: next(folder.glob("*.json"), None))
    assert json.loads(file.read_text())["conversations"] == before
    delete = desktop.find_element(By.ID, "delete-all")
    delete.click()
    delete.click()
    until(desktop, lambda page: "deleted" in text_of("#transfer-state")(page))
    assert kept(desktop) == []
    assert imported(desktop, file.read_text(), tmp_path) == "Imported: 1"
    def plain(conversations):
        names = {message["id"]: i for one in conversations for i, message in enumerate(one["messages"])}
        strip = lambda message: {**message, "id": 0, "conversation": 0, "parent": names.get(message["parent"])}
        return [[one["title"], names[one["leaf"]], [strip(message) for message in one["messages"]]] for one in conversations]
    assert plain(kept(desktop)) == plain(before)


def test_an_export_of_llama_cpp_is_imported(desktop, server, tmp_path):  # noqa: F811
    call = json.dumps([{"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}])
    rows = [
        ("leaf", "t", "assistant", "It is noon.", {}),
        ("t", "a", "tool", "noon", {"toolCallId": "c"}),
        ("a", "q", "assistant", "", {"toolCalls": call, "reasoningContent": "They want the time."}),
        ("b", "q", "assistant", "No idea.", {}),
        ("q", "s", "user", "What time is it?", {}),
        ("s", "r", "system", "Be short.", {"type": "system"}),
        ("r", None, "system", "", {"type": "root"}),
    ]
    messages = [
        {"id": id, "convId": "x", "type": "text", "timestamp": 10 - i, "role": role, "content": text, "parent": parent, "children": [], **more}
        for i, (id, parent, role, text, more) in enumerate(rows)
    ]
    open_page(desktop, server.url)
    conv = {"id": "x", "name": "The time", "lastModified": 5, "currNode": "leaf"}
    assert imported(desktop, [{"conv": conv, "messages": messages}], tmp_path) == "Imported: 1"
    [read] = kept(desktop)
    assert (read["title"], read["system"], read["updated"]) == ("The time", "Be short.", 5)
    desktop.find_element(By.CSS_SELECTOR, "#settings .primary").click()
    all_of("#conversations .open")(desktop)[0].click()
    until(desktop, lambda page: text_of(".message.assistant .text")(page) == "It is noon.")
    assert [summary.text for summary in all_of(".call summary")(desktop)] == ["Tool call: now", "Result of now"]
    assert text_of(".versions .count")(desktop) == "2/2"


@pytest.mark.parametrize(("content", "reason"), [
    ("{", "not JSON"),
    ({"format": "other"}, "no conversations"),
    (file_of(*[conversation("x", "y")] * 1_001), "more than 1000"),
    (file_of({"title": 7}), "lacks its title"),
    (file_of(conversation("x", *["y"] * 2_001)), "too many messages"),
    (file_of({**conversation("x", "y"), "messages": [{"id": "a", "parent": "b", "role": "user", "content": ""}]}), "stands before"),
    (file_of({**conversation("x", "y"), "messages": [{"id": "a", "parent": None, "role": "system", "content": ""}]}), "its role"),
    (file_of({**conversation("x", "y"), "messages": [{"id": "a", "parent": None, "role": "user", "content": {}}]}), "its text"),
])
def test_a_bad_file_says_what_is_wrong_and_nothing_of_it_is_kept(desktop, server, tmp_path, content, reason):  # noqa: F811
    open_page(desktop, server.url)
    assert reason in imported(desktop, content, tmp_path)
    assert kept(desktop) == []


def test_the_oldest_conversation_goes_first_beyond_a_thousand(desktop, server):  # noqa: F811
    open_page(desktop, server.url)
    desktop.set_script_timeout(300)
    left = desktop.execute_async_script(
        """const done = arguments[0];
        import("/ui/storage.js").then(async ({ BrowserStorage }) => {
          const storage = await BrowserStorage.open();
          const head = (i) => ({ id: `c${i}`, title: `t${i}`, created: i, updated: i, leaf: `m${i}` });
          const message = (i) => ({ id: `m${i}`, conversation: `c${i}`, parent: null, role: "user", content: "x", created: i });
          for (let i = 0; i < 1_003; i++) await storage.save(head(i), [message(i)]);
          const heads = await storage.conversations();
          done([heads.length, heads.at(-1).id, (await storage.messages("c0")).length, (await storage.messages("c3")).length]);
        });"""
    )
    assert left == [1_000, "c3", 0, 1]


def test_a_long_conversation_shows_its_end_first(desktop, server, tmp_path):  # noqa: F811
    open_page(desktop, server.url)
    imported(desktop, file_of(conversation("Long", *[f"Message {i}" for i in range(250)])), tmp_path)
    desktop.find_element(By.CSS_SELECTOR, "#settings .primary").click()
    until(desktop, lambda page: titles(page) == ["Long"])
    all_of("#conversations .open")(desktop)[0].click()
    until(desktop, lambda page: len(all_of(".message")(page)) == 100)
    assert text_of(".message .text")(desktop) == "Message 249"
    assert text_of(".earlier")(desktop) == "Show earlier messages (150)"
    desktop.execute_script("arguments[0].click()", desktop.find_element(By.CSS_SELECTOR, ".earlier"))
    until(desktop, lambda page: len(all_of(".message")(page)) == 200)


def test_nothing_is_kept_where_nothing_shall_be(desktop, server):  # noqa: F811
    open_page(desktop, server.url)
    setting(desktop, keep=False)
    until(desktop, lambda page: page.execute_script("return document.getElementById('keep')?.checked === false"))
    until(desktop, lambda page: page.find_element(By.ID, "model").is_enabled())
    chat(desktop, "Hello!")
    assert titles(desktop) == ["Hello!"] and kept(desktop) == []
    desktop.refresh()
    until(desktop, lambda page: page.find_element(By.ID, "model").is_enabled())
    assert titles(desktop) == [] and not all_of(".message")(desktop)


def test_tabs_share_the_list_and_back_goes_to_the_conversation_before(desktop, server):  # noqa: F811
    open_page(desktop, server.url)
    chat(desktop, "Hello!")
    first = desktop.current_window_handle
    desktop.switch_to.new_window("tab")
    open_page(desktop, server.url)
    chat(desktop, "What is 7 plus 5?")
    desktop.switch_to.window(first)
    until(desktop, lambda page: titles(page) == ["What is 7 plus 5?", "Hello!"])
    all_of("#conversations .open")(desktop)[0].click()
    until(desktop, lambda page: text_of(".message.user .text")(page) == "What is 7 plus 5?")
    desktop.back()
    until(desktop, lambda page: text_of(".message.user .text")(page) == "Hello!")


def test_an_answer_goes_on_while_another_conversation_is_read(desktop, server):  # noqa: F811
    open_page(desktop, server.url)
    chat(desktop, "Hello!")
    desktop.find_element(By.ID, "new").click()
    desktop.execute_script(STREAM)
    send(desktop, "A long one")
    until(desktop, lambda page: page.execute_script("return Boolean(window.stream)"))
    desktop.execute_script("say({ content: 'It begins' })")
    until(desktop, lambda page: "It begins" in text_of(".message.assistant .text")(page))
    until(desktop, lambda page: len(titles(page)) == 2)
    all_of("#conversations .open")(desktop)[1].click()
    until(desktop, lambda page: text_of(".message.user .text")(page) == "Hello!")
    assert all_of("#conversations .busy")(desktop)
    desktop.execute_script("say({ content: ' and ends.' }); say({}, 'stop'); end()")
    until(desktop, lambda page: not all_of("#conversations .busy")(page))
    all_of("#conversations .open")(desktop)[0].click()
    until(desktop, lambda page: text_of(".message.assistant .text")(page) == "It begins and ends.")


def test_a_stopped_answer_keeps_what_it_has(desktop, server):  # noqa: F811
    open_page(desktop, server.url)
    desktop.execute_script(STREAM)
    send(desktop, "A long one")
    until(desktop, lambda page: page.execute_script("return Boolean(window.stream)"))
    desktop.execute_script("say({ content: 'It begins' })")
    until(desktop, lambda page: "It begins" in text_of(".message.assistant .text")(page))
    desktop.find_element(By.ID, "prompt").send_keys(Keys.ESCAPE)
    # The stream of the test does not see that it is aborted; the server's would.
    desktop.execute_script("try { stream.error(new DOMException('stopped', 'AbortError')) } catch { }")
    until(desktop, lambda page: "stopped" in text_of(".stats")(page))
    assert text_of(".message.assistant .text")(desktop) == "It begins"


def test_the_keyboard_reaches_everything(desktop, server):  # noqa: F811
    open_page(desktop, server.url)
    chat(desktop, "Hello!")
    body = desktop.find_element(By.ID, "prompt")
    body.send_keys(Keys.ARROW_UP)
    assert desktop.switch_to.active_element.get_attribute("aria-label") == "Edit your message"
    desktop.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not all_of(".editor")(desktop)
    body.send_keys(Keys.CONTROL, "k")
    assert desktop.switch_to.active_element.get_attribute("id") == "search"
    desktop.switch_to.active_element.send_keys(Keys.CONTROL, "b")
    assert not desktop.find_element(By.ID, "sidebar").is_displayed()
    body.send_keys(Keys.CONTROL, Keys.SHIFT, "g")
    until(desktop, lambda page: text_of(".versions .count")(page) == "2/2")
    until(desktop, all_of(".message.assistant .stats"))
    body.send_keys(Keys.CONTROL, "/")
    until(desktop, all_of("#shortcuts[open]"))
    assert len(all_of("#shortcut-list dd")(desktop)) == 12
    desktop.switch_to.active_element.send_keys(Keys.ESCAPE)
    body.send_keys(Keys.CONTROL, ",")
    until(desktop, all_of("#settings[open]"))
    desktop.switch_to.active_element.send_keys(Keys.ESCAPE)
    body.send_keys(Keys.CONTROL, Keys.SHIFT, "o")
    until(desktop, lambda page: not all_of(".message")(page))
    assert desktop.switch_to.active_element.get_attribute("id") == "prompt"
