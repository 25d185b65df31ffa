"""An MCP server of the official SDK for tests: over standard input and output, or with a port over HTTP. Its tools write what they were
asked into the file that CALLS names."""

import os
import socket
import sys
import time

from mcp.server import MCPServer

app = MCPServer("calculator")


def note(line):
    if path := os.environ.get("CALLS"):
        with open(path, "a") as file:
            file.write(line + "\n")


@app.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    note(f"add {a} {b}")
    return a + b


@app.tool()
def shout(text: str) -> str:
    """Says a text loudly."""
    note(f"shout {text}")
    return text.upper()


@app.tool()
def broken() -> str:
    """Fails."""
    note("broken")
    raise ValueError("out of order")


@app.tool()
def nap(seconds: float) -> str:
    """Sleeps."""
    note("nap begins")
    time.sleep(seconds)
    note("nap ends")
    return "rested"


@app.tool()
def reach(port: int) -> str:
    """Connects to a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError as error:
        return f"unreachable: {error.strerror}"
    return "reached"


if len(sys.argv) > 1:
    app.run("streamable-http", port=int(sys.argv[1]))
else:
    app.run("stdio")
