"""Embedding models and rerankers, served over HTTP, give the vectors of transformers to OpenAI's library.

The models are fixtures of `crates/model`; `expected_embeddings.safetensors` beside each has token ids of six texts and the vector or
the logit of each.
"""

import json
import math

import pytest
import requests
from conftest import ROOT
from encoder_folder import with_tokenizer
from test_reference_models import tensors

FIXTURES = ROOT / "crates/model/tests/fixtures"
EMBEDDERS = ["bert-cls", "xlm-roberta-mean", "modernbert-mean", "nomic-bert", "qwen3-embedding", "embeddinggemma"]
TOLERANCE = 1e-5


def expected(name):
    """Token ids of the texts, and the vectors."""
    found = tensors(FIXTURES / name / "expected_embeddings.safetensors")
    (n_texts, row), ids = found["input_ids"]
    lengths = found["lengths"][1]
    texts = [list(ids[i * row : i * row + lengths[i]]) for i in range(n_texts)]
    (_, width), flat = found["embedding"]
    return texts, [flat[i * width : (i + 1) * width] for i in range(n_texts)]


def assert_close(found, vector):
    assert len(found) == len(vector)
    assert max(abs(a - b) for a, b in zip(found, vector)) < TOLERANCE


@pytest.mark.parametrize("name", EMBEDDERS)
def test_embeddings_are_those_of_transformers(start, name):
    texts, vectors = expected(name)
    with start(FIXTURES / name) as server:
        client = server.client()
        for encoding in ["float", "base64"]:
            # The library decodes base64 where it asked for it by itself.
            options = {} if encoding == "base64" else {"encoding_format": "float"}
            answer = client.embeddings.create(model=name, input=texts, **options)
            assert [item.index for item in answer.data] == list(range(len(texts)))
            for item, vector in zip(answer.data, vectors):
                assert_close(item.embedding, vector)
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, texts))
        # One text alone has the same numbers, digit for digit.
        whole = client.embeddings.create(model=name, input=texts, encoding_format="float").data
        alone = client.embeddings.create(model=name, input=texts[2], encoding_format="float").data[0]
        assert alone.embedding == whole[2].embedding
        short = client.embeddings.create(model=name, input=texts[2], dimensions=8, encoding_format="float").data[0]
        length = math.sqrt(sum(x * x for x in vectors[2][:8]))
        assert_close(short.embedding, [x / length for x in vectors[2][:8]])


def post(server, path, body):
    return requests.post(server.url + path, json=body, timeout=60)


def test_texts_are_read_by_wordpiece_and_cut_or_refused(start, tmp_path):
    with start(with_tokenizer(FIXTURES / "bert-cls", tmp_path / "bert-cls")) as server:
        client = server.client()
        embed = lambda text, **options: client.embeddings.create(
            model="bert-cls", input=text, encoding_format="float", **options
        )
        answer = embed("The quick fox jumped.")
        # [CLS] the quick fox jump ##ed . [SEP]
        ids = [2, 4, 5, 7, 8, 9, 15, 3]
        assert answer.usage.prompt_tokens == len(ids)
        assert answer.data[0].embedding == embed(ids).data[0].embedding
        long = "dog " * 100
        refused = post(server, "/v1/embeddings", {"model": "bert-cls", "input": long})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
        cut = embed(long, extra_body={"truncate_prompt_tokens": -1})
        assert cut.usage.prompt_tokens == 64
        assert cut.data[0].embedding == embed([2] + [14] * 62 + [3]).data[0].embedding
        assert embed(long, extra_body={"truncate_prompt_tokens": 10}).usage.prompt_tokens == 10
        # Hundreds of short texts at once.
        many = embed(["the dog jumps over a fox"] * 1500)
        assert len(many.data) == 1500 and len({tuple(item.embedding) for item in many.data}) == 1
        chat = post(server, "/v1/chat/completions", {"model": "bert-cls", "messages": [{"role": "user", "content": "hi"}]})
        assert chat.status_code == 400 and "/v1/embeddings" in chat.json()["error"]["message"]
        for body in [{"input": []}, {}, {"input": "a", "dimensions": 33}, {"input": "a", "encoding_format": "int8"}, {"input": [999]}]:
            assert post(server, "/v1/embeddings", {"model": "bert-cls", **body}).status_code == 400, body
        # Embedding models score pairs by their cosine.
        scores = post(server, "/score", {"text_1": "the fox", "text_2": ["the fox", "a lazy dog"]}).json()["data"]
        assert abs(scores[0]["score"] - 1) < 1e-6 and scores[1]["score"] < 1


def test_prompts_of_a_model_stand_before_texts(start, tmp_path):
    folder = with_tokenizer(FIXTURES / "bert-cls", tmp_path / "bert-cls")
    prompts = {"query": "the fox . ", "document": "", "lazy": "a lazy dog "}
    config = {"prompts": prompts, "default_prompt_name": "lazy", "similarity_fn_name": "cosine"}
    (tmp_path / "bert-cls" / "config_sentence_transformers.json").write_text(json.dumps(config))
    with start(folder) as server:
        embed = lambda text, **options: post(
            server, "/v1/embeddings", {"model": "bert-cls", "input": text, **options}
        ).json()
        vector = lambda text, **options: embed(text, **options)["data"][0]["embedding"]
        plain = vector("the fox . over", prompt_name="document")
        assert vector("over", prompt_name="query") == plain
        assert vector("over") == vector("a lazy dog over", prompt_name="document") != plain
        assert vector("over", prompt_name="document") != plain
        # Token ids stay as they are.
        assert embed([2, 4, 3], prompt_name="query")["usage"]["prompt_tokens"] == 3
        error = embed("over", prompt_name="passage")["error"]
        assert (error["code"], error["param"]) == ("invalid_value", "prompt_name")
        assert "document, lazy, query" in error["message"]


def test_rerankers_order_documents_by_their_scores(start, tmp_path):
    documents = ["the lazy dog", "a quick brown fox jumps", "over ."]
    with start(with_tokenizer(FIXTURES / "bert-reranker", tmp_path / "bert-reranker")) as server:
        body = {"model": "bert-reranker", "query": "the fox", "documents": documents}
        ranked = post(server, "/v1/rerank", body).json()
        scores = [result["relevance_score"] for result in ranked["results"]]
        assert scores == sorted(scores, reverse=True) and all(0 < score < 1 for score in scores)
        assert all(result["document"]["text"] == documents[result["index"]] for result in ranked["results"])
        assert ranked["usage"]["total_tokens"] == 3 * 5 + 3 + 6 + 2
        best = post(server, "/rerank", {**body, "top_n": 1, "return_documents": False}).json()["results"]
        assert best == [{"index": ranked["results"][0]["index"], "relevance_score": scores[0]}]
        pairs = {"model": "bert-reranker", "text_1": "the fox", "text_2": documents}
        by_index = {result["index"]: result["relevance_score"] for result in ranked["results"]}
        data = post(server, "/score", pairs).json()["data"]
        assert [item["score"] for item in data] == [by_index[i] for i in range(3)]
        logits = post(server, "/v1/score", {**pairs, "use_activation": False}).json()["data"]
        for item, logit in zip(data, logits):
            assert abs(item["score"] - 1 / (1 + math.exp(-logit["score"]))) < 1e-6
        classes = post(server, "/v1/classify", {"model": "bert-reranker", "input": "the dog"}).json()["data"]
        assert classes[0]["label"] == "LABEL_0" and classes[0]["num_classes"] == 1
        refused = post(server, "/v1/embeddings", {"model": "bert-reranker", "input": "a"})
        assert refused.status_code == 400 and "/v1/rerank" in refused.json()["error"]["message"]
        assert post(server, "/score", {**pairs, "text_1": ["a", "a"]}).status_code == 400


def test_text_models_give_no_embeddings(server):
    refused = post(server, "/v1/embeddings", {"input": "a text"})
    assert refused.status_code == 400 and "/v1/chat/completions" in refused.json()["error"]["message"]
