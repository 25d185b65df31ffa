"""Real kills over a folder of keys and values: the server is killed at any moment, its file is damaged, its disk is full, and no answer changes.

A failure prints its seed: THRONG_ATTACK_SEED repeats it, and THRONG_ATTACKS sets the number of rounds.
"""

import os
import random
import resource
import signal
import threading
import time

import httpx
import pytest

from conftest import Server

N_PROMPTS = 5


@pytest.fixture
def seed():
    number = int(os.environ.get("THRONG_ATTACK_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"THRONG_ATTACK_SEED={number}")
    return number


def ask(url, number):
    content = f"Story {number}: " + " ".join(f"word{(i * 7 + number) % 50}" for i in range(180))
    body = {"model": "throng-starter", "messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body | {"ignore_eos": True, "logprobs": True}, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def damage(rng, path):
    size = path.stat().st_size
    with open(path, "r+b") as file:
        match rng.randrange(3):
            case 0:
                file.truncate(rng.randrange(size + 1))
            case 1:
                path.unlink()
            case _:
                for _ in range(rng.randrange(1, 200)):
                    file.seek(rng.randrange(max(size, 1)))
                    file.write(bytes([rng.randrange(256)]))


@pytest.mark.nightly
def test_kills_and_damage_change_no_answer(binary, tmp_path, seed):
    rng, n_rounds = random.Random(seed), int(os.environ.get("THRONG_ATTACKS", 40))
    arguments = ["--kv-offload-dir", tmp_path / "blocks", "--kv-cache-memory", "2MiB"]
    with_server = Server(binary, *arguments)
    expected = [ask(with_server.url, number) for number in range(N_PROMPTS)]
    with_server.process.terminate()
    with_server.process.wait(timeout=60)
    n_answers = 0
    for _ in range(n_rounds):
        server = Server(binary, *arguments)
        try:
            if rng.randrange(3) == 0:
                # A file may not grow beyond this size, as on a full disk.
                resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (rng.randrange(1 << 20),) * 2)
            for number in rng.sample(range(N_PROMPTS), 2):
                assert ask(server.url, number) == expected[number]
                n_answers += 1
            # Another request is running when it is killed.
            def ask_in_vain(url=server.url, number=rng.randrange(N_PROMPTS)):
                with pytest.raises(httpx.HTTPError):
                    ask(url, number)
                    raise httpx.HTTPError("it was answered before")

            asking = threading.Thread(target=ask_in_vain)
            asking.start()
            time.sleep(rng.random() / 10)
        finally:
            server.process.send_signal(signal.SIGKILL if rng.randrange(4) else signal.SIGTERM)
            server.process.wait(timeout=60)
        asking.join()
        if rng.randrange(2):
            [damage(rng, path) for path in (tmp_path / "blocks").glob("*/blocks")]
    assert n_answers == 2 * n_rounds
    print(f"{n_rounds} rounds, {n_answers} answers, none wrong")
