"""Answers of models that mean harm do nothing: no script runs, no request leaves, and the page goes on."""

import pytest
from pages import STREAM, all_of, complaints, open_model, open_page, requested, send, text_of, until
from pages import desktop, saying  # noqa: F401: fixtures
from selenium.webdriver.common.by import By

HARM = "window.harm = 1"
SCRIPTS = f"""<script>{HARM}</script>
<img src=x onerror="{HARM}"> <svg onload="{HARM}"> <iframe srcdoc="<script>parent.harm = 1</script>"></iframe>

<style>body {{ display: none }}</style><base href="https://evil.example/"><meta http-equiv="refresh" content="0;url=//evil.example">
<form action="https://evil.example"><input name=q><button>Go</button></form><math><mtext><img src=x onerror="{HARM}"></mtext></math>

[link](javascript:{HARM}) [more](JaVaScRiPt&colon;{HARM}) [data](data:text/html,<script>{HARM}</script>) [v](vbscript:x) <javascript:{HARM}>

![picture](https://evil.example/pixel.png) ![local](/v1/models) ![data](data:image/svg+xml,<svg/onload={HARM}>) [![a](https://evil.example/b.png)](https://evil.example/c)

[ref] and [other][ref]

[ref]: javascript:{HARM} "title"

$\\href{{javascript:{HARM}}}{{x}}$ $\\includegraphics{{https://evil.example/x.png}}$ $\\htmlStyle{{background:url(https://evil.example)}}{{x}}$
$\\class{{x" onmouseover="{HARM}}}{{y}}$ $\\unicode{{<img src=x onerror={HARM}>}}$ $\\text{{<img src=x onerror={HARM}>}}$ $\\color{{url(https://evil.example/y)}}z$

```html" onload="{HARM}
</code></pre><script>{HARM}</script><img src=x onerror="{HARM}">
```

| a | <img src=x onerror="{HARM}"> |
|---|---|
| [x](javascript:{HARM}) | <script>{HARM}</script> |

&lt;script&gt;{HARM}&lt;/script&gt; &#106;avascript:{HARM} <a href="javascript:{HARM}" id="prompt" name="body">x</a>
"""


def is_unharmed(page, server):
    assert page.execute_script("return window.harm") is None
    assert [url for url in requested(page) if not url.startswith((server.url, "blob:"))] == []
    assert [url for url in requested(page) if "pixel" in url] == []
    assert complaints(page) == []


def test_scripts_links_pictures_and_forms_of_a_model_do_nothing(desktop, saying):  # noqa: F811
    with saying(SCRIPTS, n_chars=24) as server:
        open_model(desktop, server.url)
        requested(desktop)
        send(desktop, "Hello!")
        until(desktop, all_of(".message.assistant .stats"))
        text = desktop.find_element(By.CSS_SELECTOR, ".message.assistant .text")
        assert HARM in text.text  # It stands there as text.
        hostile = "script, style, iframe, img, svg, form, input, button:not(.copy-code), base, meta, object, embed, video, audio, link"
        assert text.find_elements(By.CSS_SELECTOR, hostile) == []
        attributes = desktop.execute_script(
            "return [...arguments[0].querySelectorAll('*')].flatMap((node) => node.getAttributeNames()"
            ".map((name) => `${name}=${node.getAttribute(name)}`))", text
        )
        assert [one for one in attributes if one.startswith("on") or "javascript:" in one.lower() or one.startswith("id=")] == []
        links = {link.get_attribute("href") for link in text.find_elements(By.TAG_NAME, "a")}
        assert links and all(link.startswith("https://evil.example/") for link in links)
        # The same when it is read again from the storage, edited, and searched for.
        desktop.refresh()
        until(desktop, all_of(".message.assistant .stats"))
        desktop.find_element(By.ID, "search").send_keys("onerror")
        until(desktop, all_of("#conversations .snippet"))
        desktop.execute_script("document.querySelectorAll('.message a').forEach((link) => link.dispatchEvent(new Event('mouseover')))")
        is_unharmed(desktop, server)


def test_the_sanitizer_alone_stops_what_the_parser_would_let_through(desktop, server):  # noqa: F811
    open_page(desktop, server.url)
    requested(desktop)
    left = desktop.execute_async_script(
        "const done = arguments[1]; import('/ui/sanitizer.js').then(({ sanitize }) => {"
        "const box = document.createElement('div'); box.append(sanitize(arguments[0])); document.body.append(box);"
        "setTimeout(() => done([...box.querySelectorAll('*')].map((node) => node.outerHTML.split('>')[0])), 200); })",
        SCRIPTS + "<p style='background:url(https://evil.example)' class=ok data-x=1>x</p><a href=' java\nscript:harm=1'>y</a>",
    )
    assert left and not [one for one in left if any(word in one for word in ("script", "onerror", "src", "style", "data-x", "form", "id="))]
    assert desktop.execute_script("return window.harm") is None
    assert requested(desktop) == [server.url + "/ui/sanitizer.js"] or requested(desktop) == []


def test_the_browser_refuses_html_that_did_not_pass_the_sanitizer(desktop, server):  # noqa: F811
    open_page(desktop, server.url)
    refused = desktop.execute_script(
        "try { document.body.insertAdjacentHTML('beforeend', '<b>x</b>'); return false; } catch (error) { return error.name; }"
    )
    assert refused == "TypeError"


DEEP = {
    "quotes": ">" * 5_000 + " deep\n",
    "lists": "".join(" " * (2 * depth) + "- x\n" for depth in range(400)),
    "emphasis": "*a **b " * 4_000,
    "brackets": "[" * 20_000 + "](" * 5_000,
    "images": "![" * 10_000,
    "dollars": "$x " * 5_000 + "\\(" * 5_000 + "$$" * 2_000,
    "braces": "$" + "{" * 4_000 + "}" * 4_000 + "$\n\n$" + "\\frac{" * 900 + "$",
    "expansion": "$\\def\\a{\\a\\a}\\a$ $\\def\\b#1{#1#1#1#1}" + "\\b{" * 30 + "x" + "}" * 30 + "$ $\\rule{99999em}{99999em}$",
    "ticks": "`" * 10_000 + " " + "``` `` ` " * 2_000,
    "links": "http://a." * 5_000,
    "entities": "&" * 20_000 + "&amp;" * 2_000,
    "underscores": "_" * 20_000 + "a" + "_" * 20_000,
    "one line": "x" * 300_000,
    "code": "```python\n" + "(" * 30_000 + "\n",
    "table": "|" + "a|" * 200 + "\n|" + "-|" * 200 + "\n" + ("|" + "b|" * 200 + "\n") * 200,
    "wide table": "|" + "a|" * 20_000 + "\n|" + "-|" * 20_000 + "\n",
}


@pytest.mark.parametrize("name", DEEP)
def test_the_page_goes_on_with_deep_and_huge_answers(desktop, server, name):  # noqa: F811
    open_page(desktop, server.url)
    desktop.execute_script(STREAM)
    send(desktop, "Hello!")
    until(desktop, lambda page: page.execute_script("return Boolean(window.stream)"))
    desktop.set_script_timeout(60)
    # The text comes in pieces, one a frame; then a part of it must be seen, and the answer must end.
    desktop.execute_async_script(
        """const [text, done] = arguments;
        const size = Math.ceil(text.length / 40);
        let at = 0;
        const next = () => {
          if (at >= text.length) { done(); return; }
          say({ content: text.slice(at, at += size) });
          requestAnimationFrame(next);
        };
        next();""",
        DEEP[name],
    )
    desktop.execute_script("say({}, 'stop'); end()")
    until(desktop, all_of(".message.assistant footer .copy"))
    assert text_of(".message.assistant .text")(desktop).strip()
    assert desktop.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert complaints(desktop) == []


def test_a_huge_table_is_rendered_only_in_part_while_it_grows(desktop, server):  # noqa: F811
    open_page(desktop, server.url)
    counts = desktop.execute_async_script(
        """const done = arguments[0];
        import("/ui/markdown_view.js").then(({ MarkdownView }) => {
          const target = document.createElement("div");
          const view = new MarkdownView(target);
          const counts = [];
          new MutationObserver((changes) => { counts.push(changes.reduce((n, { addedNodes }) => n + addedNodes.length, 0)); })
            .observe(target, { childList: true, subtree: true });
          let text = "|a|b|\\n|-|-|\\n";
          const step = () => {
            text += "|some words|others|\\n".repeat(500);
            view.update(text, false);
            if (text.length < 150_000) setTimeout(step); else setTimeout(() => done([counts, target.querySelectorAll("tr").length]));
          };
          step();
        });"""
    )
    added, n_rows = counts
    assert n_rows < 1_200 and all(n <= 2 for n in added[-5:])


BIDI = "safe \u202e txet desrever\n\nnext paragraph \u2067unclosed isolate\n\n`if admin\u202e \u2066// check\u2069 \u2066`\n\n```c\n/*\u202e } \u2066if (admin)\u2069 \u2066 begin */\n```\n\nאבג mixed עם English\n"


def test_bidirectional_text_stays_in_its_place_and_is_marked_in_code(desktop, saying):  # noqa: F811
    with saying(BIDI, n_chars=12) as server:
        open_model(desktop, server.url)
        send(desktop, "Name \u202egnp.exe this")
        until(desktop, all_of(".message.assistant .stats"))
        marks = [mark.text for mark in all_of(".message.assistant pre .control")(desktop)]
        assert marks == ["U+202E", "U+2066", "U+2069", "U+2066"]
        assert "\u202e" not in text_of(".message.assistant pre")(desktop)
        isolated = desktop.execute_script(
            "return [...document.querySelectorAll('.message .text, #conversations .title')]"
            ".every((node) => getComputedStyle(node).unicodeBidi === 'isolate')"
        )
        assert isolated
        paragraphs = all_of(".message.assistant .text > p")(desktop)
        assert [one.value_of_css_property("direction") for one in paragraphs][-1] == "rtl"
        assert "\u202e" not in text_of("#conversations .title")(desktop)
