"""Models that come and go while the server runs: loaded by requests and by the operator, unloaded for room, by time and by the operator,
and no request is lost by it."""

import datetime
import shutil
import threading
import time

import httpx
import pytest
import requests
from conftest import ROOT

STARTER = ROOT / "starter/models/throng-starter.gguf"
BASE = "throng-starter"
KV = 16 << 20


@pytest.fixture()
def settings(tmp_path):
    """A configuration with models "one" and "two", which are the starter under other names, and "broken"."""

    def written(base=BASE, **on_demand):
        model = f'model = "{base}"' if base else ""
        lines = [f"[model]\n{model}\nkv_cache_memory_bytes = {KV}", "[gateway.on_demand]"]
        lines += [f"{key} = {value!r}".replace("'", '"') for key, value in on_demand.items()]
        broken = tmp_path / "broken.gguf"
        broken.write_bytes(b"GGUF" + bytes(100))
        for name, path in [("one", tmp_path / "one.gguf"), ("two", tmp_path / "two.gguf"), ("broken", broken)]:
            if name != "broken":
                shutil.copy(STARTER, path)
            lines.append(f'[[on_demand]]\nname = "{name}"\nmodel = "{path}"')
        file = tmp_path / "throng.toml"
        file.write_text("\n".join(lines))
        return file

    return written


def ask(server, model, **fields):
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0, **fields}
    return requests.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)


def text(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def operate(server, action, model):
    return requests.post(f"{server.url}/v1/models/{action}", json={"model": model}, timeout=120)


def states(server):
    """The models that are listed, with the state of those that come and go."""
    return {model["id"]: model.get("state") for model in httpx.get(f"{server.url}/v1/models").json()["data"]}


def served(server):
    """Those that are in memory."""
    return {model for model, state in states(server).items() if state in (None, "loaded")}


def weights(server):
    """The bytes of weights in memory, as the metrics say."""
    lines = httpx.get(f"{server.url}/metrics", headers={"accept": "text/plain"}).text.splitlines()
    [value] = [line.split()[1] for line in lines if line.startswith('throng_memory_bytes{part="weights"}')]
    return float(value)


def wait_until(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_all_models_are_listed_from_the_start_and_no_starter_is_loaded_for_them(start, settings):
    with start("--config", settings(base=None)) as server:
        absent = {"one": "unloaded", "two": "unloaded", "broken": "unloaded"}
        # The operator named no model, so that none is loaded before it is asked for.
        assert states(server) == absent and weights(server) == 0
        card = httpx.get(f"{server.url}/v1/models/two").json()
        assert (card["id"], card["state"]) == ("two", "unloaded")
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert text(ask(server, "one"))
        assert states(server) == {**absent, "one": "loaded"}
        unknown = ask(server, "nobody")
        assert unknown.status_code == 404
        message = unknown.json()["error"]["message"]
        assert all(f"'{name}'" in message for name in absent), message


def test_a_request_waits_for_its_model(start, settings):
    with start("--config", settings()) as server:
        assert served(server) == {BASE}
        expected = text(ask(server, BASE))
        # Many requests load it once.
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(ask(server, "one"))) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert [text(answer) for answer in answers] == [expected] * 8
        wait_until(lambda: "loaded a model" in "".join(server.output))
        assert "".join(server.output).count("loaded a model") == 1
        assert served(server) == {BASE, "one"}
        tokenized = requests.post(f"{server.url}/tokenize", json={"model": "two", "prompt": "Hi"}, timeout=120)
        assert tokenized.status_code == 200 and served(server) == {BASE, "one", "two"}
        broken = ask(server, "broken")
        assert (broken.status_code, broken.json()["error"]["code"]) == (503, "model_load_failed")
        assert ask(server, "nobody").status_code == 404
        assert operate(server, "load", "nobody").status_code == 404
        assert operate(server, "unload", BASE).status_code == 400


def test_the_operator_loads_and_unloads_and_no_stream_is_cut(start, settings):
    with start("--config", settings(on_request="never")) as server:
        refused = ask(server, "one")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_not_loaded")
        of_base = weights(server)
        assert operate(server, "load", "one").json() == {"model": "one", "state": "loaded"}
        assert weights(server) == 2 * of_base > 0
        body = {"model": "one", "prompt": "Hi", "max_tokens": 400, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as stream:
            lines = stream.iter_lines()
            next(lines)
            unloading = threading.Thread(target=operate, args=(server, "unload", "one"))
            unloading.start()
            wait_until(lambda: served(server) == {BASE})
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]" and '"completion_tokens":400' in rest[-2]
        unloading.join()
        assert weights(server) == of_base
        assert operate(server, "unload", "one").json() == {"model": "one", "state": "unloaded"}
        assert ask(server, "one").status_code == 503
        assert operate(server, "load", "one").status_code == 200
        assert text(ask(server, "one"))


def test_models_make_room_for_one_another(start, settings):
    # Of two, one has room.
    with start("--config", settings(max_memory_bytes=int(1.5 * (STARTER.stat().st_size + KV)))) as server:
        expected = text(ask(server, BASE))
        for model in ["one", "two", "one", "two"]:
            assert text(ask(server, model)) == expected
            assert served(server) == {BASE, model}


def test_a_refused_request_brings_its_model_and_an_unused_one_goes(start, settings):
    with start("--config", settings(on_request="refuse", idle_unload_s=2)) as server:
        refused = ask(server, "one")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_not_ready")
        assert int(refused.headers["retry-after"]) > 0
        wait_until(lambda: ask(server, "one").status_code == 200)
        wait_until(lambda: served(server) == {BASE})


def test_a_model_that_ollama_has_unloaded_is_gone_with_the_answer(start, settings):
    with start("--config", settings(idle_unload_s=300)) as server:
        assert ask(server, "one").status_code == 200
        told = httpx.post(f"{server.url}/api/generate", json={"model": "one", "keep_alive": 0}, timeout=60).json()
        assert (told["done"], told["done_reason"]) == (True, "unload")
        assert served(server) == {BASE}


def test_ollamas_lists_say_how_long_a_model_stays_and_showing_it_again_does_not_load_it(start, settings):
    with start("--config", settings(idle_unload_s=300)) as server:
        def show():
            return httpx.post(f"{server.url}/api/show", json={"model": "one"}, timeout=60).json()

        described = show()
        assert "completion" in described["capabilities"]
        in_memory = {model["name"]: model for model in httpx.get(f"{server.url}/api/ps").json()["models"]}
        assert set(in_memory) == {BASE, "one"} and all(model["size"] > 0 for model in in_memory.values())
        now, until = (datetime.datetime.now(datetime.UTC), datetime.datetime.fromisoformat(in_memory["one"]["expires_at"]))
        assert 0 < (until - now).total_seconds() <= 300
        assert in_memory[BASE]["expires_at"].startswith("9999"), "the first model is not unloaded"
        httpx.post(f"{server.url}/api/generate", json={"model": "one", "keep_alive": 0}, timeout=60)
        assert show() == described
        assert served(server) == {BASE}
