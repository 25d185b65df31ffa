"""The page of `throng plan --html`: one file with plots that needs no network, at desktop and phone width."""

import json
import subprocess

import pytest
from pages import all_of, browser, until  # noqa: F401: a fixture
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

SHAPE = "layers=32,hidden=4096,heads=32,kv-heads=8,head-dim=128,ffn=14336,vocabulary=128256,context=8192"


@pytest.fixture(scope="module")
def page_file(binary, tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.html"
    command = [binary, "plan", "--shape", SHAPE, "--machine", "h100,l40s,a100", "--rate", "20", "--simulate", "20"]
    command += ["--first-token-ms", "1000", "--gap-ms", "200", "--price", "h100=2.5,l40s=1,a100=1.5", "--html", path, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return path, json.loads(done.stdout)


def requests_of(page):
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    sent = [message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"]
    # The browser's own pages are not the plan's.
    return [url for url in sent if not url.startswith(("file:", "data:", "chrome"))]


def test_the_page_draws_its_plots_and_asks_nobody(browser, page_file):
    path, plan = page_file
    browser.get(path.as_uri())
    until(browser, lambda page: len(all_of("figure svg path.line")(page)) >= 15)
    titles = [heading.text for heading in all_of("figure h2")(browser)]
    assert titles[:5] == [
        "First token",
        "Gap between tokens",
        "Cost of a million output tokens",
        "Energy",
        "Memory for keys and values",
    ]
    assert titles[5:] == [
        "First token, simulated",
        "Gaps, simulated",
        "Whole answers, simulated",
        "Queue and batch over time",
        "Use over time",
    ]
    # Every plot has a line of more than two points, and says values in words.
    for figure in all_of("figure")(browser):
        path_of = figure.find_element(By.CSS_SELECTOR, "path.line").get_attribute("d")
        assert path_of.count("L") >= 2 and "NaN" not in path_of, path_of
        readout = figure.find_element(By.CSS_SELECTOR, ".readout").text
        assert ": " in readout and "NaN" not in readout and "?" not in readout, readout
    best = plan["fleets"][0]
    first = all_of("#fleets tr:nth-child(2) td")(browser)[0].text
    assert first.startswith(f"{best['replicas']} × {best['machine']}"), first
    assert first in browser.find_element(By.ID, "cards").text
    rows = all_of("#fleets tr")(browser)
    assert len(rows) == 1 + len(plan["fleets"])
    assert requests_of(browser) == []
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []


def test_nothing_is_wider_than_the_window(browser, page_file):
    browser.get(page_file[0].as_uri())
    until(browser, lambda page: all_of("figure svg path.line")(page))
    width, wide = browser.execute_script("return [window.innerWidth, document.documentElement.scrollWidth]")
    assert wide <= width
    for figure in all_of("figure")(browser):
        assert figure.rect["x"] >= 0 and figure.rect["x"] + figure.rect["width"] <= width + 1


def test_plots_follow_the_pointer_the_keys_and_the_legend(browser, page_file):
    browser.get(page_file[0].as_uri())
    until(browser, lambda page: all_of("figure svg path.line")(page))
    figure = all_of("figure")(browser)[0]
    svg, readout = figure.find_element(By.TAG_NAME, "svg"), figure.find_element(By.CSS_SELECTOR, ".readout")
    before = readout.text
    browser.execute_script("arguments[0].scrollIntoView({ block: 'center' })", svg)
    ActionChains(browser).move_to_element_with_offset(svg, svg.rect["width"] // 4, 0).perform()
    until(browser, lambda page: readout.text != before)
    pointed = readout.text
    browser.execute_script("arguments[0].focus()", svg)
    ActionChains(browser).send_keys("\ue012").perform()
    until(browser, lambda page: readout.text != pointed)
    n_lines = len(figure.find_elements(By.CSS_SELECTOR, "path.line"))
    figure.find_element(By.CSS_SELECTOR, ".legend button").click()
    until(browser, lambda page: len(figure.find_elements(By.CSS_SELECTOR, "path.line")) == n_lines - 1)
