"""What the page makes of answers: Markdown, tables, code, formulas, JSON, reasoning, tool calls, token probabilities."""

import json

import pytest
import replay
from pages import STREAM, all_of, complaints, open_model, open_page, requested, said, send, setting, text_of, until
from pages import browser, desktop, saying  # noqa: F401: fixtures
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

ANSWER = r"""## Roots

The equation $ax^2 + bx + c = 0$ has **two** solutions; it costs $5 or $6:

$$x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}$$

| discriminant | roots |
|:---|---:|
| positive | 2 |
| zero | \(1\) |

```python
def root(x):
    return x ** 0.5  # one of them
```

1. *first*
2. [x] second, see https://example.org/roots and [a page](https://example.org "title")

> In the end $\boxed{42}$ over \[\mathbb{R}\]
"""


def count(page, selector):
    return len(all_of(".message.assistant .text " + selector)(page))


def whole(page, question="Hello!"):
    send(page, question)
    until(page, all_of(".message.assistant .stats"))


def test_markdown_tables_code_and_formulas_are_rendered(browser, saying):  # noqa: F811
    with saying(ANSWER) as server:
        open_model(browser, server.url)
        whole(browser)
        text = ".message.assistant .text "
        assert text_of(text + "h3.level2")(browser) == "Roots"
        assert [cell.text for cell in all_of(text + "td")(browser)][:3] == ["positive", "2", "zero"]
        aligned = browser.find_element(By.CSS_SELECTOR, text + "td:last-child")
        assert aligned.value_of_css_property("text-align") == "right"
        assert text_of(text + ".hljs-keyword")(browser) == "return"
        assert text_of(text + ".hljs-comment")(browser) == "# one of them"
        assert count(browser, "math") == 5 and count(browser, "math[display=block]") == 2
        assert "$5 or $6" in text_of(text)(browser)
        boxed = browser.find_element(By.CSS_SELECTOR, text + "blockquote mrow")
        assert boxed.value_of_css_property("border-left-width") == "1px"
        links = all_of(text + "a")(browser)
        assert [link.get_attribute("href") for link in links] == ["https://example.org/roots", "https://example.org/"]
        assert all("noopener" in link.get_attribute("rel") for link in links)
        assert count(browser, "ol li") == 2 and count(browser, "em") == 1 and count(browser, "blockquote") == 1
        assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
        assert complaints(browser) == []
        assert [url for url in requested(browser) if not url.startswith(server.url)] == []


def test_code_is_copied_without_its_marks(desktop, saying):  # noqa: F811
    with saying(ANSWER) as server:
        open_model(desktop, server.url)
        whole(desktop)
        all_of(".copy-code")(desktop)[0].click()
        until(desktop, lambda page: text_of(".copy-code")(page) == "Copied")
        box = desktop.find_element(By.ID, "prompt")
        box.send_keys(Keys.CONTROL, "v")
        assert box.get_attribute("value") == "def root(x):\n    return x ** 0.5  # one of them"


def test_json_mode_is_asked_for_and_shown_indented(desktop, server):  # noqa: F811
    open_page(desktop, server.url)
    setting(desktop, format="schema", schema='{"enum": [{"name": "lamp", "lit": true}]}')
    whole(desktop)
    shown = text_of(".message.assistant .code code")(desktop)
    assert json.loads(shown) == {"name": "lamp", "lit": True} and "\n" in shown
    setting(desktop, format="json", max_tokens="40")
    assert desktop.execute_script("return import('/ui/settings.js').then((m) => m.settings().format)") == "json"


def test_a_wrong_schema_keeps_the_dialog_open(desktop, server):  # noqa: F811
    open_page(desktop, server.url)
    desktop.find_element(By.ID, "open-settings").click()
    desktop.execute_script("document.getElementById('format').value = 'schema'")
    desktop.execute_script("document.getElementById('schema').value = '[1]'")
    desktop.find_element(By.CSS_SELECTOR, "#settings .primary").click()
    until(desktop, lambda page: all_of("#settings[open]")(page))
    assert desktop.execute_script("return document.getElementById('schema-error').textContent") == "A schema is an object."


TOOLS = json.dumps([{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}])


def test_tool_calls_are_folded_and_their_results_given_by_the_reader(desktop, start, tmp_path):  # noqa: F811
    # A template that has the model call in its first turn, and say something once there is a result.
    model = tmp_path / "calls.gguf"
    call = ["<tool_call>", '{"name": "now", "arguments": {"zone": "UTC"}}', "</tool_call>"]
    template = replay.MESSAGES + "{% if tools %}{{ tools | tojson }}<tool_call></tool_call>{% endif %}"
    replay.write(model, call, template=template, control=["<tool_call>", "</tool_call>"])
    with start(model, "--tool-call-parser", "hermes") as server:
        open_model(desktop, server.url)
        setting(desktop, tools=TOOLS)
        send(desktop, "What time is it?")
        until(desktop, all_of(".results"))
        assert text_of(".call summary")(desktop) == "Tool call: now"
        folded = desktop.find_element(By.CSS_SELECTOR, ".call")
        assert folded.get_attribute("open") is None
        folded.find_element(By.CSS_SELECTOR, "summary").click()
        assert json.loads(text_of(".call code")(desktop)) == {"zone": "UTC"}
        desktop.find_element(By.CSS_SELECTOR, ".results textarea").send_keys("noon")
        desktop.find_element(By.CSS_SELECTOR, ".results button").click()
        until(desktop, lambda page: len(all_of(".message.assistant .stats")(page)) == 2)
        assert text_of(".message.tool summary")(desktop) == "Result of now"


def test_the_probabilities_of_tokens_are_shown_and_another_token_goes_on_from_there(desktop, server):  # noqa: F811
    open_page(desktop, server.url)
    setting(desktop, probabilities=True, temperature="0")
    whole(desktop, "What is 7 plus 5?")
    said_before = text_of(".message.assistant .text")(desktop)
    desktop.find_element(By.CSS_SELECTOR, ".show-tokens").click()
    tokens = all_of(".token")(desktop)
    assert "".join(token.get_attribute("textContent") for token in tokens).strip() == said_before
    assert not desktop.find_element(By.CSS_SELECTOR, ".token-tip").is_displayed()
    ActionChains(desktop).move_to_element(tokens[1]).perform()
    assert "%" in until(desktop, text_of(".token-tip"))
    # The keyboard reaches each, and what it could have been.
    tokens[0].send_keys(Keys.ARROW_RIGHT)
    tip = until(desktop, lambda page: text_of(".token-tip")(page))
    assert "%" in tip and desktop.switch_to.active_element == tokens[1]
    choices = all_of(".token-tip button")(desktop)
    assert len(choices) >= 4
    chosen = choices[0].text.replace("␣", " ").replace("↵", "\n")
    choices[0].click()
    until(desktop, lambda page: text_of(".versions .count")(page) == "2/2")
    until(desktop, all_of(".message.assistant .stats"))
    messages = desktop.execute_script(
        "return import('/ui/storage.js').then(async ({ BrowserStorage }) => { const storage = await BrowserStorage.open();"
        "const [head] = await storage.conversations(); return storage.messages(head.id); })"
    )
    first, second = [message for message in messages if message["role"] == "assistant"]
    assert second["content"].startswith(first["tokens"][0][0] + chosen)


def test_reasoning_and_half_open_code_while_they_come(desktop, server):  # noqa: F811
    open_page(desktop, server.url)
    desktop.execute_script(STREAM)
    send(desktop, "Hello!")
    until(desktop, lambda page: page.execute_script("return Boolean(window.stream)"))
    desktop.execute_script("say({ content: 'First.\\n\\nSecond.\\n\\n```rust\\nfn main() {\\n' })")
    until(desktop, lambda page: "fn main() {" in text_of(".code code")(page))
    desktop.execute_script("document.querySelector('.text p').id = 'settled'; document.querySelector('.code').id = 'open'")
    desktop.execute_script("say({ content: '    let x = 1;' })")
    until(desktop, lambda page: "let x" in text_of(".code code")(page))
    # Neither what is settled nor the block that grows is made anew.
    assert all_of("#settled")(desktop) and all_of("#open")(desktop)
    desktop.execute_script("say({ content: '\\n}\\n```\\nDone.' }); say({}, 'stop'); end()")
    until(desktop, all_of(".message.assistant footer .copy"))
    assert text_of(".code code")(desktop) == "fn main() {\n    let x = 1;\n}"
    assert all_of("#settled")(desktop) and text_of(".message.assistant .text > p")(desktop) == "Done."


@pytest.mark.parametrize("n_chars", [1, 3, 7])
def test_what_is_shown_at_the_end_does_not_depend_on_the_pieces_it_came_in(desktop, server, n_chars):  # noqa: F811
    open_page(desktop, server.url)
    same = """
      const [text, size, done] = arguments;
      import("/ui/markdown_view.js").then(({ MarkdownView }) => {
        const [grown, whole] = [document.createElement("div"), document.createElement("div")];
        const view = new MarkdownView(grown);
        for (let end = size; end < text.length; end += size) view.update(text.slice(0, end), false);
        view.update(text, true);
        new MarkdownView(whole).update(text, true);
        done([grown.innerHTML, whole.innerHTML]);
      });
    """
    text = ANSWER + "\nfoo\n#bar\n***bold*** [late]\n\n- a\n\n  b\n- c\n1. d\n\n    code\n\n    more\n\n|x|\n|-\ny\n\n[late]: https://e.org\n"
    grown, whole_ = desktop.execute_async_script(same, text, n_chars)
    assert grown == whole_


def test_the_parts_of_a_text_are_unique():
    parts = said("aaaa aaaa aaaa aaaa aaaa", 4)
    assert len(set(parts)) == len(parts)
