"""Keys and values that are kept on disk: a server that was stopped or killed goes on with what it had computed."""

import os
import re
import shutil
import signal

import httpx
import pytest

from conftest import Server

# Blocks for about one and a half of the prompts.
MEMORY = "2MiB"


def prompt(number, n_words=180):
    return [{"role": "user", "content": f"Story {number}: " + " ".join(f"word{(i * 7 + number) % 50}" for i in range(n_words))}]


@pytest.fixture
def serve(binary, tmp_path):
    running = []

    def start(*arguments):
        server = Server(binary, "--kv-offload-dir", tmp_path / "blocks", "--kv-cache-memory", MEMORY, *arguments)
        running.append(server)
        return server

    yield start
    for server in running:
        server.process.kill()


def answer(server, number):
    """The answer to a prompt, and the number of its tokens that were found in a cache."""
    made = server.client().chat.completions.create(
        model="throng-starter", messages=prompt(number), max_tokens=8, temperature=0
    )
    details = made.usage.prompt_tokens_details
    return made.choices[0].message.content, details.cached_tokens if details else 0, made.usage.prompt_tokens


def metric(server, name):
    text = httpx.get(server.url + "/metrics").text
    return sum(float(value) for value in re.findall(rf"^{name}{{[^}}]*}} (\S+)", text, re.M))


def stop(server, how):
    os.kill(server.process.pid, how)
    server.process.wait(timeout=60)


def assert_found(answers):
    """Nearly all tokens were found. On a busy machine the blocks of one prompt may come too late: they are computed then."""
    shares = sorted(n_cached / n_prompt for _, n_cached, n_prompt in answers)
    assert all(share >= 0.9 for share in shares[1:]), answers


def test_a_stopped_and_a_killed_server_go_on_with_what_they_had(serve, tmp_path):
    server = serve()
    first = [answer(server, number) for number in range(6)]
    assert all(n_cached < 16 * 3 for _, n_cached, _ in first), first
    stop(server, signal.SIGTERM)

    server = serve()
    again = [answer(server, number) for number in range(6)]
    assert [text for text, _, _ in again] == [text for text, _, _ in first]
    assert_found(again)
    assert metric(server, "throng_kv_blocks_restored_total") > 0
    stop(server, signal.SIGKILL)

    server = serve()
    after = [answer(server, number) for number in range(6)]
    assert [text for text, _, _ in after] == [text for text, _, _ in first]
    assert_found(after)
    stop(server, signal.SIGTERM)

    folders = list((tmp_path / "blocks").iterdir())
    assert len(folders) == 1 and folders[0].stat().st_mode & 0o777 == 0o700
    assert (folders[0] / "blocks").stat().st_mode & 0o777 == 0o600

    # A file that is damaged everywhere is as good as none.
    path = folders[0] / "blocks"
    damaged = bytearray(path.read_bytes())
    for at in range(5000, len(damaged), 97):
        damaged[at] ^= 0x10
    path.write_bytes(damaged)
    server = serve()
    assert [answer(server, number)[0] for number in range(6)] == [text for text, _, _ in first]
    stop(server, signal.SIGTERM)
    shutil.rmtree(tmp_path / "blocks")


def test_a_folder_that_cannot_be_used_is_said_and_costs_the_cache_only(serve, tmp_path):
    (tmp_path / "blocks").write_text("a file")
    server = serve()
    assert answer(server, 1)[2] > 100
    assert any("no blocks are kept on disk" in line for line in server.output), server.output
