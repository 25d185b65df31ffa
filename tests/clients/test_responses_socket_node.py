"""The official OpenAI library for JavaScript over a WebSocket connection, in Node.js."""

import shutil
import subprocess
from pathlib import Path

from conftest import MODEL, NODE


def test_node(node_folder, base_url):
    shutil.copy(Path(__file__).resolve().parent / "responses_socket.mjs", node_folder)
    command = [NODE, "responses_socket.mjs", base_url, MODEL]
    done = subprocess.run(command, cwd=node_folder, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
