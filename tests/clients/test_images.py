"""Images through the official libraries of OpenAI, Anthropic and Ollama, on a tiny model with a vision part: one
prompt, one answer, whichever API carries it, and the tokens of images in the usage where the API has a place."""

import base64
from pathlib import Path

import anthropic
import ollama
import openai
import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "crates/vision/tests/fixtures/qwen3-vl"
PICTURES = [ROOT / "crates/images/tests/fixtures" / name for name in ("tall.png", "square.png")]
TEXT = "What is it?"
N_TOKENS = 12


def base64_of(path):
    return base64.b64encode(path.read_bytes()).decode()


def data_url(path):
    return f"data:image/png;base64,{base64_of(path)}"


@pytest.fixture(scope="module")
def server(start):
    with start(MODEL) as server:
        yield server


def chat(server, pictures, **more):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    images = [{"type": "image_url", "image_url": {"url": data_url(path)}} for path in pictures]
    content = [*images, {"type": "text", "text": TEXT}]
    messages = [{"role": "user", "content": content}]
    return client.chat.completions.create(
        model=MODEL.name, messages=messages, max_tokens=N_TOKENS, temperature=0, extra_body={"ignore_eos": True}, **more
    )


@pytest.fixture(scope="module")
def answers(server):
    """What the model says of each picture, by chat completions."""
    whole = [chat(server, [path]) for path in PICTURES]
    texts = [answer.choices[0].message.content for answer in whole]
    assert texts[0] != texts[1], "the pictures matter"
    assert all(answer.usage.prompt_tokens_details.image_tokens > 0 for answer in whole)
    return texts


def test_a_stream_says_the_same_as_a_whole_answer(server, answers):
    chunks = list(chat(server, PICTURES[:1], stream=True, stream_options={"include_usage": True}))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == answers[0]
    assert chunks[-1].usage.prompt_tokens_details.image_tokens > 0


def test_responses(server, answers):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    for path, answer in zip(PICTURES, answers):
        content = [{"type": "input_image", "image_url": data_url(path)}, {"type": "input_text", "text": TEXT}]
        said = client.responses.create(
            model=MODEL.name,
            input=[{"role": "user", "content": content}],
            max_output_tokens=N_TOKENS,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
        assert said.output_text == answer
        assert said.usage.input_tokens_details.image_tokens > 0


def test_anthropic(server, answers):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        for path, answer in zip(PICTURES, answers):
            source = {"type": "base64", "media_type": "image/png", "data": base64_of(path)}
            content = [{"type": "image", "source": source}, {"type": "text", "text": TEXT}]
            said = client.messages.create(
                model=MODEL.name,
                max_tokens=N_TOKENS,
                messages=[{"role": "user", "content": content}],
                extra_body={"temperature": 0, "ignore_eos": True},
            )
            assert "".join(block.text for block in said.content if block.type == "text") == answer


def test_ollama(server, answers):
    client = ollama.Client(server.url)
    for path, answer in zip(PICTURES, answers):
        message = {"role": "user", "content": TEXT, "images": [str(path)]}
        options = {"temperature": 0, "num_predict": N_TOKENS}
        said = client.chat(model=MODEL.name, messages=[message], options=options).message.content
        # Its options cannot go on behind an end token.
        assert answer.startswith(said) and said
    assert "vision" in client.show(MODEL.name).capabilities


def test_what_is_no_image_is_refused_by_its_place(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    content = [{"type": "text", "text": TEXT}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL.name, messages=[{"role": "user", "content": content}])
    assert refused.value.code == "invalid_image" and refused.value.param == "messages[0].content[1].image_url"
