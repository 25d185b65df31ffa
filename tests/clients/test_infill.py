"""Filling in the middle by llama.cpp's `/infill`, `suffix` of OpenAI's completions and of Ollama's generate, with models that have tokens
for it under the names of their families."""

import json

import httpx
import ollama
import openai
import pytest
import replay

FAMILIES = {
    "qwen": ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>", "<|repo_name|>"],
    "starcoder": ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    "deepseek": ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    "codellama": ["▁<PRE>", "▁<SUF>", "▁<MID>"],
}
ANSWER = "return a + b"
GAP = {"input_prefix": "def add(a, b):\n    ", "input_suffix": "\n\nprint(add(1, 2))"}


@pytest.fixture(scope="module", params=FAMILIES)
def server(request, start, tmp_path_factory):
    """A model that says the answer behind the token before the text of the gap."""
    model = tmp_path_factory.mktemp("infill") / f"{request.param}.gguf"
    replay.write_infill(model, FAMILIES[request.param], ANSWER)
    with start(model) as server:
        yield server


def model_of(server):
    return httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"]


def test_infill_answers_in_llama_cpp_s_form(server):
    extra = [{"filename": "other.py", "text": "x = 1"}]
    answer = httpx.post(f"{server.url}/infill", json={**GAP, "input_extra": extra, "prompt": "# sum\n    ", "n_predict": 32, "temperature": 0})
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["content"], told["stop"], told["stop_type"]) == (ANSWER, True, "eos")
    assert told["timings"]["predicted_n"] == told["tokens_predicted"] > 0
    cut = httpx.post(f"{server.url}/infill", json={**GAP, "n_predict": 2, "temperature": 0}).json()
    assert cut["stop_type"] == "limit" and ANSWER.startswith(cut["content"])


def test_infill_streams(server):
    text, last = "", None
    with httpx.stream("POST", f"{server.url}/infill", json={**GAP, "stream": True, "temperature": 0}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line:
                last = json.loads(line.removeprefix("data: "))
                text += last["content"]
    assert (text, last["stop"]) == (ANSWER, True)


def test_completions_have_a_suffix(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    asked = {"model": model_of(server), "prompt": GAP["input_prefix"], "suffix": GAP["input_suffix"], "temperature": 0}
    answer = client.completions.create(max_tokens=32, **asked)
    assert answer.choices[0].text == ANSWER
    pieces = client.completions.create(max_tokens=32, stream=True, **asked)
    assert "".join(piece.choices[0].text for piece in pieces) == ANSWER
    for wrong in ({"echo": True}, {"prompt": [1, 2]}):
        with pytest.raises(openai.BadRequestError, match="suffix"):
            client.completions.create(**{**asked, **wrong})


def test_ollama_s_generate_has_a_suffix(server):
    client = ollama.Client(server.url)
    answer = client.generate(
        model=model_of(server), prompt=GAP["input_prefix"], suffix=GAP["input_suffix"], options={"temperature": 0, "num_predict": 32}
    )
    assert answer.response == ANSWER


def test_text_of_a_file_is_no_control_token(server):
    """A prompt that spells a control token has no more of them than another one."""
    name = "<|end|>"
    plain, spelled = [
        httpx.post(f"{server.url}/infill", json={"input_prefix": text, "input_suffix": "", "n_predict": 1}).json()["tokens_evaluated"]
        for text in ("x" * len(name), name)
    ]
    assert plain == spelled


def test_other_models_refuse_by_name(start):
    with start() as server:
        answer = httpx.post(f"{server.url}/infill", json=GAP)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == (400, "input_prefix") and "filling in the middle" in error["message"]
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model="throng-starter", prompt="a", suffix="b")
        assert refused.value.param == "suffix"
        missing = httpx.post(f"{server.url}/infill", json={"input_prefix": "a"}).json()["error"]
        assert missing["param"] == "input_suffix"
