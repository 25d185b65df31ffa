"""A gateway over workers of two models, one of text and one of vectors: what either gives is what `throng serve` gives, and the
semantic cache of the gateway uses both."""

import re

import httpx
import pytest
import requests
from conftest import ROOT
from documented import Document
from encoder_folder import with_tokenizer
from ports import free_port
from test_foreign_engines import process, wait_for

FIXTURES = ROOT / "crates/model/tests/fixtures"
TOKEN = {"THRONG_WORKER_TOKEN": "the-token"}
TEXTS = ["the quick fox", "a lazy dog", "the fox jumped over the dog ."]
PAIRS = {"query": "the fox", "documents": TEXTS}


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoders")
    return [with_tokenizer(FIXTURES / name, folder / name) for name in ["bert-cls", "bert-reranker"]]


def post(url, path, body):
    answer = requests.post(f"{url}{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.fixture(scope="module")
def workers(binary, encoders):
    """The addresses of a worker with the starter and of one for each encoder."""
    ports = [free_port() for _ in range(1 + len(encoders))]
    commands = [[binary, "worker", *model, "--listen", f"127.0.0.1:{port}", "--threads", "1"] for model, port in zip([[], *([str(folder)] for folder in encoders)], ports)]
    with process(commands[0], **TOKEN), process(commands[1], **TOKEN), process(commands[2], **TOKEN):
        yield [f"throng://127.0.0.1:{port}" for port in ports]


def gateway(binary, workers, *arguments):
    port = free_port()
    replicas = [argument for worker in workers for argument in ("--replica", worker)]
    return f"http://127.0.0.1:{port}", process([binary, "gateway", "--port", str(port), *replicas, *arguments], **TOKEN)


def has_models(url, n_models):
    roots = lambda: {model["root"] for model in httpx.get(f"{url}/v1/models").json().get("data", [])}
    wait_for(lambda: len(roots()) == n_models, "all models")


def numbers(answer):
    """What is in the answer but for its id and time."""
    return {key: value for key, value in answer.json().items() if key not in ("id", "created")}


def test_vectors_and_scores_of_workers_are_those_of_one_process(binary, start, workers, encoders):
    requests_of = {
        "bert-cls": [("/v1/embeddings", {"input": TEXTS}), ("/rerank", PAIRS), ("/score", {"text_1": "the fox", "text_2": TEXTS})],
        "bert-reranker": [("/rerank", PAIRS), ("/v1/classify", {"input": TEXTS})],
    }
    url, running = gateway(binary, workers)
    with running:
        has_models(url, 3)
        document = Document(requests.get(f"{url}/openapi.json", timeout=60).json())
        for folder in encoders:
            with start(folder) as alone:
                for path, body in requests_of[folder.name]:
                    body = {"model": folder.name, **body}
                    answer = post(url, path, body)
                    assert numbers(answer) == numbers(post(alone.url, path, body)), (folder.name, path)
                    assert list(document.faults("POST", path, 200, "application/json", answer.content)) == []
        refused = requests.post(f"{url}/v1/chat/completions", json={"model": "bert-cls", "messages": [{"role": "user", "content": "Hi"}]}, timeout=60)
        for path in ["/fleet", "/v1/models", "/explain"]:
            answer = requests.get(f"{url}{path}", timeout=60)
            assert list(document.faults("GET", path, answer.status_code, "application/json", answer.content)) == []
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_parameter")


def test_questions_that_mean_the_same_get_the_same_answer(binary, workers, tmp_path):
    settings = tmp_path / "throng.toml"
    # Words that the encoder does not know are alike to it.
    settings.write_text(
        """
        [gateway.response_cache]
        max_memory_bytes = 1_000_000
        [gateway.semantic_cache]
        model = "bert-cls"
        mode = "serve"
        organisations = ["*"]
        min_similarity = 0.9999
        timeout_ms = 10_000
        """
    )
    url, running = gateway(binary, workers, "--config", str(settings))
    with running:
        has_models(url, 3)

        def ask(question, **fields):
            body = {"model": "throng-starter", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 8, **fields}
            answer = post(url, "/v1/chat/completions", body)
            return answer.headers["x-cache"], answer.json()["choices"]

        first = ask("Why do moons shine?")
        assert first[0] == "miss"
        assert ask("How might stars glow?") == ("similar", first[1])
        assert ask("the quick brown fox jumped over a lazy dog .")[0] == "miss"
        assert ask("How might stars glow?", max_tokens=9)[0] == "miss"
        metrics = requests.get(f"{url}/metrics", timeout=60).text
        counts = dict(re.findall(r'throng_semantic_cache_look_ups_total\{result="(\w+)"\} (\d+)', metrics))
        assert counts == {"hit": "1", "reported": "0", "miss": "3", "failed": "0"}
