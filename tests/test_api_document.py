"""The examples of docs/api.md, run as they stand against the real binary: the answers have the documented form."""

import json
import re
import shlex
import subprocess

import pytest
from conftest import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text()
#: A command, and the answer where the page shows one as JSON.
EXAMPLE = re.compile(r"```sh\n(curl .*?)```\n\n```(json)?\n(.*?)```", re.DOTALL)
EXAMPLES = EXAMPLE.findall(PAGE)


def form(value):
    """The value with every text and number exchanged for its type."""
    if isinstance(value, dict):
        return {key: form(inner) for key, inner in value.items()}
    if isinstance(value, list):
        # Lists of alike elements may be of any length.
        return [form(value[0])] if value else []
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "number"
    return value if value is None or isinstance(value, bool) else type(value).__name__


def test_the_page_has_an_example_of_each_route_of_models():
    paths = {re.search(r"127\.0\.0\.1:8000(/\S*)", command).group(1) for command, _, _ in EXAMPLES}
    assert paths >= {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/v1/models", "/explain"}


@pytest.mark.parametrize("command, kind, shown", EXAMPLES, ids=[str(number) for number in range(len(EXAMPLES))])
def test_an_example_is_answered_as_shown(server, command, kind, shown):
    # So that /explain has what it shows: a finished chat.
    if command.rstrip().endswith("/explain"):
        chat = next(command for command, _, _ in EXAMPLES if "/v1/chat/completions" in command)
        run(server, chat)
    answer = run(server, command)
    if kind == "json":
        assert form(json.loads(answer)) == form(json.loads(shown))
    else:
        events = [line for line in answer.splitlines() if line]
        documented = [line for line in shown.splitlines() if line]
        for wanted, event in zip(documented, [events[0], *events[-2:]], strict=True):
            assert event == wanted == "data: [DONE]" or form(read(event)) == form(read(wanted))


def read(event):
    return json.loads(event.removeprefix("data: "))


def run(server, command):
    address = command.replace("http://127.0.0.1:8000", server.url)
    done = subprocess.run([*shlex.split(address), "--silent", "--fail-with-body"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
