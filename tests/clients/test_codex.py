"""OpenAI's coding agent Codex finishes a task whose answers are scripted: `THRONG_CODEX=PROGRAM pytest tests/clients/test_codex.py`."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from replay import write_turns  # noqa: E402

CODEX = os.environ.get("THRONG_CODEX")
CONFIG = """
model = "scripted"
model_provider = "throng"
model_context_window = 32768
web_search = "disabled"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.throng]
name = "Throng"
base_url = "{url}/v1"
wire_api = "responses"
supports_websockets = {sockets}
"""


def run(command):
    return "<tool_call>" + json.dumps({"name": "exec_command", "arguments": {"cmd": command}}) + "</tool_call>"


@pytest.mark.skipif(CODEX is None, reason="THRONG_CODEX names no program")
@pytest.mark.parametrize("sockets", ["false", "true"])
def test_codex_reads_edits_and_runs(start, tmp_path, sockets):
    turns = [
        "I read it first." + run("cat greeting.txt"),
        run("sed -i s/World/Throng/ greeting.txt") + run("touch done"),
        "All is well: 'greeting.txt' greets Throng now!",
    ]
    write_turns(tmp_path / "scripted.gguf", turns)
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    (work / "greeting.txt").write_text("Hello, World\n")
    with start(tmp_path / "scripted.gguf", "--served-model-name", "scripted") as server:
        (home / "config.toml").write_text(CONFIG.format(url=server.url, sockets=sockets))
        command = [CODEX, "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "Greet Throng."]
        done = subprocess.run(
            command, cwd=work, env={**os.environ, "CODEX_HOME": str(home)}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=300,
        )
        metrics = urllib.request.urlopen(server.url + "/metrics", timeout=60).read().decode()
    upgraded = 'handler="/v1/responses",method="GET",status="101"'
    assert (upgraded in metrics) == (sockets == "true"), metrics
    assert (work / "greeting.txt").read_text() == "Hello, Throng\n", done.stdout + done.stderr
    assert (work / "done").exists()
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    said = [event["item"] for event in events if event["type"] == "item.completed"]
    assert [item["text"] for item in said if item["type"] == "agent_message"][-1].startswith("All is well"), done.stdout
    assert any(item["type"] == "command_execution" for item in said), done.stdout
