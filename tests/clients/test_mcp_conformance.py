"""MCP's own tests of clients, and its server with an example of everything, against `throng tools`."""

import json
import os
import shlex
import subprocess

import pytest

from conftest import NODE

MODULES = "node_modules/@modelcontextprotocol"
CALLS = {
    "initialize": ["list", "s"],
    "tools_call": ["call", "s", "add_numbers", '{"a": 5, "b": 3}'],
    "sse-retry": ["call", "s", "test_reconnection"],
}
# Elicitation and OAuth, which the other scenarios are about, are not used.


@pytest.mark.parametrize("scenario", CALLS)
def test_a_scenario_for_clients(binary, node_folder, tmp_path, scenario):
    """The suite starts a server, runs the client with its address as the last word, and judges what the client did."""
    client = tmp_path / "client.sh"
    words = shlex.join([str(binary), "tools", *CALLS[scenario], "--config", str(tmp_path / "throng.toml")])
    setting = f'[gateway.tools]\\npins = "{tmp_path}/pins.json"\\n[[gateway.tools.server]]\\nname = "s"\\nurl = "%s"\\n'
    client.write_text(f"#!/bin/sh\nprintf '{setting}' \"$1\" > {tmp_path}/throng.toml\nexec {words}\n")
    client.chmod(0o755)
    command = [NODE, node_folder / MODULES / "conformance/dist/index.js", "client", "--command", client, "--scenario", scenario]
    # The client's stream for messages of the server opens while the call is sent. Where it arrives late, the suite takes
    # it for the reconnection and says that it could measure nothing.
    for _ in range(5):
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        told = run.stdout + run.stderr
        if "Could not measure timing" not in told:
            break
    assert run.returncode == 0 and "OVERALL: PASSED" in told, told


def test_the_server_of_everything(binary, node_folder, tmp_path):
    """Results that are no text are named, failures are told, and the program gets nothing of the environment but what it needs."""
    path = tmp_path / "mcp.json"
    program = str(node_folder / MODULES / "server-everything/dist/index.js")
    server = {"command": NODE, "args": [program, "stdio"], "sandbox": "none", "env": {"GIVEN": "${env:GIVEN_HERE}"}}
    path.write_text(json.dumps({"mcpServers": {"everything": server}}))
    flags = ["--mcp-config", path, "--tool-pins", tmp_path / "pins.json"]
    environment = {**os.environ, "GIVEN_HERE": "given", "SECRET": "secret"}

    def tools(*words):
        command = [binary, "tools", *words, *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)

    assert "everything: 13 tools approved" in tools("approve").stdout
    assert "approved  get-sum" in tools("list").stdout
    call = lambda name, **arguments: tools("call", "everything", name, json.dumps(arguments))
    assert call("get-sum", a=2, b=3).stdout == "The sum of 2 and 3 is 5.\n"
    assert "[image of the type image/png]" in call("get-tiny-image").stdout
    assert json.loads(call("get-structured-content", location="New York").stdout)["conditions"]
    assert "[resource demo://resource/dynamic" in call("get-resource-links", count=2).stdout
    assert "completed" in call("trigger-long-running-operation", duration=0.2, steps=2).stdout
    seen = call("get-env").stdout
    assert '"GIVEN": "given"' in seen and "secret" not in seen
    failed = call("get-sum", a="x")
    assert failed.returncode == 1 and "Invalid arguments" in failed.stderr
