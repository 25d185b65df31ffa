"""lm-eval's two models for such servers, on tasks made here and so without a network."""

import json

import pytest
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import check_remote_tokenizer_support

from conftest import MODEL

DOCUMENTS = [
    {"question": "What is 2 plus 2?", "choices": [" 4", " seventeen"], "answer": 0, "text": "4"},
    {"question": "Say hello.", "choices": [" Hello!", " !olleH"], "answer": 0, "text": "Hello!"},
]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "documents.jsonl").write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    shared = dict(
        dataset_path="json",
        dataset_kwargs={"data_files": {"test": str(folder / "documents.jsonl")}},
        test_split="test",
        doc_to_text="{{question}}",
        target_delimiter="",
        metadata={"version": 1},
    )
    choice = dict(
        task="throng_choice",
        output_type="multiple_choice",
        doc_to_choice="{{choices}}",
        doc_to_target="{{answer}}",
        metric_list=[{"metric": "acc"}],
    )
    rolling = dict(
        task="throng_rolling",
        output_type="loglikelihood_rolling",
        doc_to_target="{{question}}",
        metric_list=[{"metric": "byte_perplexity"}],
    )
    generate = dict(
        task="throng_generate",
        output_type="generate_until",
        doc_to_target="{{text}}",
        generation_kwargs={"until": ["\n"], "max_gen_toks": 16, "do_sample": False},
        metric_list=[{"metric": "exact_match"}],
    )
    for task in (choice, rolling, generate):
        # JSON is YAML.
        (folder / f"{task['task']}.yaml").write_text(json.dumps({**shared, **task}))
    return TaskManager(include_path=str(folder), include_defaults=False)


def evaluate(tasks, model, url, task, **more):
    settings = dict(model=MODEL, base_url=url, num_concurrent=2, max_retries=1, max_length=1024)
    settings.update(more.pop("model_args", {}))
    results = simple_evaluate(
        model=model, model_args=settings, tasks=[task], task_manager=tasks, bootstrap_iters=0, log_samples=True, **more
    )
    return results["results"][task], results["samples"][task]


@pytest.fixture()
def remote_tokenizer(start):
    """A server that describes its tokenizer; texts and tokens are exchanged by its `/tokenize` and `/detokenize`."""
    with start("--enable-tokenizer-info-endpoint") as server:
        yield {"tokenizer_backend": "remote", "base_url": server.url + "/v1/completions"}


def test_the_server_s_tokenizer_is_found(remote_tokenizer):
    assert check_remote_tokenizer_support(remote_tokenizer["base_url"])


def test_choices_by_log_probabilities(tasks, base_url, client, remote_tokenizer):
    _, samples = evaluate(tasks, "local-completions", base_url + "/completions", "throng_choice", model_args=remote_tokenizer)
    assert len(samples) == len(DOCUMENTS)
    for sample in samples:
        document = sample["doc"]
        for choice, ((value, _),) in zip(document["choices"], sample["resps"], strict=True):
            text = document["question"] + choice
            echo = client.completions.create(model=MODEL, prompt=text, max_tokens=0, echo=True, logprobs=1)
            logprobs = echo.choices[0].logprobs
            of_choice = [
                logprob
                for logprob, offset in zip(logprobs.token_logprobs, logprobs.text_offset, strict=True)
                if offset >= len(document["question"])
            ]
            assert value == pytest.approx(sum(of_choice), abs=1e-4)


def test_rolling_log_probabilities(tasks, base_url, remote_tokenizer):
    result, _ = evaluate(tasks, "local-completions", base_url + "/completions", "throng_rolling", model_args=remote_tokenizer)
    assert result["byte_perplexity,none"] > 1


def test_text_is_generated_until_a_stop(tasks, base_url, remote_tokenizer):
    _, samples = evaluate(tasks, "local-completions", base_url + "/completions", "throng_generate", model_args=remote_tokenizer)
    assert all("\n" not in sample["resps"][0][0] for sample in samples)


def test_chats_answer(tasks, base_url):
    _, samples = evaluate(
        tasks, "local-chat-completions", base_url + "/chat/completions", "throng_generate", apply_chat_template=True
    )
    assert all(sample["resps"][0][0].strip() for sample in samples)
