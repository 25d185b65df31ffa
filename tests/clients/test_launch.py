"""`throng launch`: coding agents from npm do a task (read a file, edit it, run a command) with a stand-in model whose answers are given
texts, on a server that is started for them or that runs already."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
import replay

TARGET = Path(__file__).resolve().parents[2] / "target"
PACKAGES = {"claude": "@anthropic-ai/claude-code", "opencode": "opencode-ai", "codex": "@openai/codex"}
TASK = "Edit hello.txt"
DONE = "The task is done."
LIMIT_S = 600


@pytest.fixture(scope="session")
def agents():
    """The folder with the agents' programs, installed once."""
    folder = TARGET / "agents"
    bin = folder / "node_modules/.bin"
    if not all((bin / name).exists() for name in PACKAGES):
        if not (npm := shutil.which("npm")):
            pytest.skip("coding agents: there is no npm")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}')
        done = subprocess.run(
            [npm, "install", "--no-audit", "--no-fund", *PACKAGES.values()], cwd=folder, capture_output=True, text=True, timeout=900
        )
        if done.returncode:
            pytest.skip("coding agents: npm's packages cannot be had")
    return bin


@pytest.fixture()
def workplace(tmp_path):
    """A folder with the file to edit; the home of the agent is beside it."""
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "home").mkdir()
    (work / "hello.txt").write_text("hello world\n")
    return work


def requests_of(server):
    """Number of responses that the server has answered."""
    line = 'http_requests_total{handler="/v1/responses",method="POST",status="200"} '
    metrics = httpx.get(f"{server.url}/metrics").text.splitlines()
    return next(int(each.removeprefix(line)) for each in metrics if each.startswith(line))


def call(name, **arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def launch(binary, agents, work, *arguments, env=()):
    kept = {name: os.environ[name] for name in ("LANG", "IS_SANDBOX") if name in os.environ}
    home = work.parent / "home"
    environment = {**kept, "HOME": str(home), "PATH": f"{agents}{os.pathsep}{os.environ['PATH']}", "SHELL": "/bin/bash", **dict(env)}
    return subprocess.run(
        [binary, "launch", *map(str, arguments)],
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def check(done, work):
    """The task is done: the file is edited, and the command has run."""
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert (work / "hello.txt").read_text() == "hello Throng\n", told
    assert (work / "seen.txt").read_text() == "hello Throng\n", told
    assert DONE in done.stdout, told


def turns(read, edit, run):
    """The answers of the task, with thoughts. The last two calls come in one answer."""
    return [
        f"<think>I must see it.</think>I read the file.\n{read}",
        f"<think>Both at once.</think>Now I edit it, and look at it.\n{edit}\n{run}",
        f"<think>Nothing is left.</think>{DONE}",
    ]


THOUGHTS = ["I must see it.", "Both at once.", "Nothing is left."]


def events(done):
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.nightly
def test_claude_code_does_a_task_on_a_server_of_its_own(binary, agents, workplace):
    file = str(workplace / "hello.txt")
    replay.write_turns(
        workplace.parent / "scripted.gguf",
        turns(
            call("Read", file_path=file),
            call("Edit", file_path=file, old_string="world", new_string="Throng"),
            call("Bash", command="cat hello.txt > seen.txt", description="Look at the file"),
        ),
    )
    model = workplace.parent / "scripted.gguf"
    told = ("--output-format", "stream-json", "--verbose")
    done = launch(binary, agents, workplace, "claude", "-m", model, "--", "-p", TASK, "--allowedTools", "Read,Edit,Bash", *told)
    check(done, workplace)
    assert "until the agent ends" in done.stderr and "4096 tokens" in done.stderr
    said = [part for event in events(done) if event["type"] == "assistant" for part in event["message"]["content"]]
    thoughts = [part for part in said if part["type"] == "thinking"]
    assert [part["thinking"] for part in thoughts] == THOUGHTS and all(part["signature"] for part in thoughts)
    assert [part["name"] for part in said if part["type"] == "tool_use"] == ["Read", "Edit", "Bash"]


@pytest.mark.nightly
def test_claude_code_goes_on_from_a_summary(binary, agents, workplace, start):
    """The model's answer to the request for a summary stands in the place of the conversation."""
    model, told = workplace.parent / "scripted.gguf", ("--output-format", "stream-json", "--verbose")
    read = call("Read", file_path=str(workplace / "hello.txt"))
    replay.write_turns(model, [f"I read the file.\n{read}", "It says hello to the world.", "Hello again."], aside="It says hello")
    with start(model) as server:
        run = lambda *words: launch(binary, agents, workplace, "claude", "--url", server.url, "--", "-p", *words, *told)
        first = run("What does hello.txt say?", "--allowedTools", "Read")
        assert events(first)[-1]["result"] == "It says hello to the world.", first.stdout + first.stderr
        compacted = run("--continue", "/compact")
        assert any(event.get("subtype") == "compact_boundary" for event in events(compacted)), compacted.stdout + compacted.stderr
        after = run("--continue", "Hello?")
        assert events(after)[-1]["result"] == "Hello again.", after.stdout + after.stderr


@pytest.mark.nightly
def test_opencode_does_a_task_on_a_running_server(binary, agents, workplace, start):
    file = str(workplace / "hello.txt")
    model = workplace.parent / "scripted.gguf"
    replay.write_turns(
        model,
        turns(
            call("read", filePath=file),
            call("edit", filePath=file, oldString="world", newString="Throng"),
            call("bash", command="cat hello.txt > seen.txt", description="Look at the file"),
        ),
    )
    with start(model, "--api-key", "secret") as server:
        address = {"THRONG_URL": server.url, "THRONG_API_KEY": "secret", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
        check(launch(binary, agents, workplace, "opencode", "--", "run", TASK, env=address), workplace)
        # Nothing is left in the files of its user but what the agent itself keeps.
        assert not [path for path in (workplace.parent / "home").rglob("opencode.json*") if "throng" in path.read_text()]


@pytest.mark.nightly
def test_codex_does_a_task_on_a_running_server(binary, agents, workplace, start):
    model = workplace.parent / "scripted.gguf"
    replay.write_turns(
        model,
        turns(
            call("exec_command", cmd="cat hello.txt"),
            call("exec_command", cmd="sed -i s/world/Throng/ hello.txt"),
            call("exec_command", cmd="sleep 1; cp hello.txt seen.txt"),
        ),
    )
    with start(model) as server:
        if httpx.post(f"{server.url}/v1/responses", json={}).status_code == 404:
            pytest.skip("Codex: the server has no /v1/responses")
        arguments = ("exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
        done = launch(binary, agents, workplace, "codex", "--url", server.url, "--", *arguments, TASK)
        check(done, workplace)
        items = [event["item"] for event in events(done) if event["type"] == "item.completed"]
        assert [item["text"] for item in items if item["type"] == "reasoning"] == THOUGHTS
        assert requests_of(server) == len(THOUGHTS)
        # Behind a few tokens it has the conversation summarized, and goes on from the summary: the model begins anew otherwise.
        (workplace / "hello.txt").write_text("hello world\n")
        compacting = ("-c", "model_auto_compact_token_limit=120")
        done = launch(binary, agents, workplace, "codex", "--url", server.url, "--", *arguments, *compacting, TASK)
        check(done, workplace)
        assert requests_of(server) == 2 * len(THOUGHTS) + 1


def test_an_agent_that_is_not_installed_is_named_with_its_command(binary, workplace):
    done = launch(binary, workplace, workplace, "codex", "-m", "throng-starter", env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 1
    assert "codex is not installed: npm install -g @openai/codex" in done.stderr


def write_agent(folder, script):
    folder.mkdir(exist_ok=True)
    agent = folder / "claude"
    agent.write_text("#!/bin/sh\n" + script)
    agent.chmod(0o755)
    return folder


def test_an_agent_gets_the_server_and_its_status_is_the_command_s(binary, workplace, server):
    bin = write_agent(workplace.parent / "bin", 'echo "$ANTHROPIC_BASE_URL $ANTHROPIC_MODEL $ANTHROPIC_API_KEY- $@"\nexit 7\n')
    env = {"ANTHROPIC_API_KEY": "of-somebody"}
    done = launch(binary, bin, workplace, "claude", "--url", server.url, "--", "-p", "two words", env=env)
    assert done.stdout.strip() == f"{server.url} throng-starter - -p two words"
    assert done.returncode == 7


def test_a_server_that_was_started_ends_with_its_agent(binary, workplace):
    bin = write_agent(workplace.parent / "bin", 'curl -s "$ANTHROPIC_BASE_URL/v1/models" && echo && echo "$ANTHROPIC_BASE_URL"\n')
    replay.write_turns(workplace.parent / "m.gguf", ["Done."])
    done = launch(binary, bin, workplace, "claude", "-m", workplace.parent / "m.gguf")
    listed, url = done.stdout.strip().splitlines()
    assert json.loads(listed)["data"][0]["id"] == "m"
    assert subprocess.run(["curl", "-s", url], capture_output=True).returncode != 0


def test_what_is_wrong_with_the_server_is_said(binary, workplace, server):
    bin = write_agent(workplace.parent / "bin", "exit 0\n")
    for arguments, words in (
        (("--url", "http://127.0.0.1:9"), "cannot reach"),
        (("--url", server.url, "-m", "other/model"), "has no model other/model"),
        (("-m", "no/such-file.gguf"), "the server did not start"),
    ):
        done = launch(binary, bin, workplace, "claude", *arguments, env={"HF_HUB_OFFLINE": "1"})
        assert done.returncode != 0 and words in done.stderr, done.stderr
