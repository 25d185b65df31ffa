"""The model of a server sleeps and wakes: its memory is given back, its texts stay, and its prompts are found again on disk."""

import json
import threading
from concurrent import futures
from pathlib import Path

import httpx
import pytest

from conftest import ROOT
from test_reference_models import FIXTURES, tensors

STARTER = ROOT / "starter/models/throng-starter.gguf"
MODEL = "throng-starter"
KV = 256 << 20


def resident_bytes(server):
    """Memory of the process that is not of files."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon", "RssShmem")))


def weights(server):
    lines = httpx.get(f"{server.url}/metrics", headers={"accept": "text/plain"}).text.splitlines()
    [value] = [line.split()[1] for line in lines if line.startswith('throng_memory_bytes{part="weights"}')]
    return float(value)


def order(server, action, **body):
    return httpx.post(f"{server.url}/v1/models/{action}", json={"model": MODEL} | body, timeout=120)


def state(server):
    return {model["id"]: model.get("state") for model in httpx.get(f"{server.url}/v1/models").json()["data"]}[MODEL]


def ask(server, n_words=300, max_tokens=8):
    content = " ".join(f"word{i * 7 % 50}" for i in range(n_words))
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body | {"temperature": 0, "ignore_eos": True}, timeout=120)
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    return whole["choices"][0]["message"]["content"], whole["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_memory_is_given_back_and_texts_and_hits_remain(start, tmp_path):
    with start("--kv-cache-memory", KV, "--kv-offload-dir", tmp_path / "blocks") as server:
        text, _ = ask(server)
        before, held = resident_bytes(server), weights(server)
        slept = order(server, "sleep", level=1)
        assert slept.json() == {"model": MODEL, "state": "sleeping"}, slept.text
        assert state(server) == "sleeping" and weights(server) == 0
        asleep = resident_bytes(server)
        assert before - asleep > 0.8 * held > 1 << 20, (before, asleep, held)
        assert order(server, "sleep").json()["state"] == "sleeping", "it sleeps already"
        woken = order(server, "wake")
        assert woken.json() == {"model": MODEL, "state": "loaded"}, woken.text
        assert weights(server) > 0
        again, n_cached = ask(server)
        assert again == text and n_cached > 250, n_cached
        # A request wakes it too.
        order(server, "sleep", level=2)
        assert state(server) == "sleeping"
        again, n_cached = ask(server)
        assert again == text and n_cached > 250 and state(server) == "loaded"


def test_running_requests_finish_first_and_none_is_lost(start):
    with start("--kv-cache-memory", KV) as server:
        expected, _ = ask(server, n_words=20, max_tokens=400)
        answers = []
        asking = [threading.Thread(target=lambda: answers.append(ask(server, n_words=20, max_tokens=400)[0])) for _ in range(4)]
        [thread.start() for thread in asking]
        for _ in range(3):
            # A model that a request just wakes is put to sleep once it is loaded and has answered.
            slept = order(server, "sleep")
            assert slept.status_code == 200, slept.text
        [thread.join() for thread in asking]
        assert answers == [expected] * 4


def test_no_request_misses_a_model_that_goes_to_sleep(start):
    """Requests come all the time, also between the look at the model's state and its removal."""
    with start("--kv-cache-memory", KV) as server:
        expected, _ = ask(server, n_words=3, max_tokens=2)
        answers, over = [], threading.Event()

        def ask_again_and_again():
            while not over.is_set():
                answers.append(ask(server, n_words=3, max_tokens=2)[0])

        with futures.ThreadPoolExecutor(8) as pool:
            asking = [pool.submit(ask_again_and_again) for _ in range(8)]
            try:
                for _ in range(10):
                    slept = order(server, "sleep")
                    assert slept.status_code == 200, slept.text
            finally:
                over.set()
            [asked.result() for asked in asking]
        assert answers and set(answers) == {expected}


def test_what_cannot_sleep_is_refused(start):
    with start() as server:
        assert order(server, "sleep", model="other").status_code == 404
        for level in (0, 3, "1"):
            assert order(server, "sleep", level=level).status_code == 400
        assert order(server, "wake", level=1).status_code == 400
        first = order(server, "unload")
        assert first.status_code == 400 and "/v1/models/sleep" in first.text, "it does not come on demand"
        assert order(server, "wake").json()["state"] == "loaded"


@pytest.mark.parametrize("path", ["tokenize", "infill"])
def test_requests_without_a_name_wake_the_only_model(start, path):
    with start() as server:
        body = {"prompt": "Hello"} if path == "tokenize" else {"input_prefix": "a", "input_suffix": "b"}
        awake = httpx.post(f"{server.url}/{path}", json=body)
        assert order(server, "sleep").status_code == 200
        # A request that needs a name and has none wakes nobody.
        refused = httpx.post(f"{server.url}/v1/completions", json={"prompt": "a"})
        assert (refused.json()["error"]["param"], state(server)) == ("model", "sleeping"), refused.text
        woken = httpx.post(f"{server.url}/{path}", json=body, timeout=60)
        assert (woken.status_code, woken.json()) == (awake.status_code, awake.json()), woken.text


def test_with_never_only_the_operator_wakes_a_model(start, tmp_path):
    file = tmp_path / "throng.toml"
    file.write_text('[gateway.on_demand]\non_request = "never"\n')
    with start("--config", file) as server:
        expected, _ = ask(server)
        assert order(server, "sleep").status_code == 200
        body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}]}
        refused = httpx.post(f"{server.url}/v1/chat/completions", json=body)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "model_not_loaded", refused.text
        assert order(server, "wake").status_code == 200
        assert ask(server)[0] == expected


@pytest.mark.parametrize("action", ["sleep", "wake"])
def test_only_the_operator_may(start, action):
    with start("--api-key", "clients-key-0123456789", "--admin-key", "operators-key-0123456789") as server:
        for key, status in [("clients-key-0123456789", 403), ("operators-key-0123456789", 200), (None, 401)]:
            headers = {"authorization": f"Bearer {key}"} if key else {}
            answer = httpx.post(f"{server.url}/v1/models/{action}", json={"model": MODEL}, headers=headers, timeout=60)
            assert answer.status_code == status, (key, answer.text)


def test_adapters_and_the_recording_are_there_after_waking(start, tmp_path):
    folder, record = FIXTURES / "adapters/llama-r8", tmp_path / "recorded.jsonl"
    expected = tensors(folder / "expected.safetensors")
    ids, greedy = list(expected["input_ids"][1]), list(expected["greedy"][1])
    with start(FIXTURES / "llama", "--allow-runtime-lora-updating", "--lora-modules", f"gone={folder}", "--record", record) as server:

        def post(path, **body):
            return httpx.post(f"{server.url}/v1/{path}", json=body, timeout=120)

        def adapted(name):
            body = {"prompt": ids, "max_tokens": len(greedy), "temperature": 0, "return_token_ids": True, "ignore_eos": True}
            return post("completions", model=name, **body)

        assert post("load_lora_adapter", lora_name="late", lora_path=str(folder)).status_code == 200
        assert post("unload_lora_adapter", lora_name="gone").status_code == 200
        assert adapted("late").json()["choices"][0]["token_ids"] == greedy
        assert post("models/sleep", model="llama").status_code == 200
        assert post("models/wake", model="llama").status_code == 200
        assert adapted("late").json()["choices"][0]["token_ids"] == greedy
        assert adapted("gone").status_code == 404, "a client has unloaded it"
    for path in (record, record.with_name(record.name + ".1")):
        lines = path.read_text().splitlines()
        assert "throng_recording" in json.loads(lines[0]) and len(lines) > 1, path


def test_adapters_of_a_sleeping_model_wake_it(start):
    folder = FIXTURES / "adapters/llama-r8"
    expected = tensors(folder / "expected.safetensors")
    ids, greedy = list(expected["input_ids"][1]), list(expected["greedy"][1])
    with start(FIXTURES / "llama", "--allow-runtime-lora-updating", "--lora-modules", f"first={folder}") as server:

        def post(path, **body):
            return httpx.post(f"{server.url}/v1/{path}", json=body, timeout=120)

        def adapted(name):
            body = {"prompt": ids, "max_tokens": len(greedy), "temperature": 0, "return_token_ids": True, "ignore_eos": True}
            return post("completions", model=name, **body)

        def sleep():
            assert post("models/sleep", model="llama").status_code == 200

        sleep()
        assert adapted("first").json()["choices"][0]["token_ids"] == greedy
        sleep()
        assert post("load_lora_adapter", lora_name="second", lora_path=str(folder)).status_code == 200
        sleep()
        assert adapted("second").json()["choices"][0]["token_ids"] == greedy
        sleep()
        assert post("unload_lora_adapter", lora_name="second").status_code == 200
        assert adapted("second").status_code == 404
        assert adapted("unheard").status_code == 404
