"""The whole server on a GPU, or on a driver in software: the page, the official client, four users, images, tools, embeddings."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from test_embeddings import FIXTURES, assert_close, expected
from test_images import OWN, integers, messages_of

DEVICE = ["--device", "vulkan:0"]


@pytest.fixture(scope="module")
def on_device(binary):
    """Arguments that choose the device; skips where no driver offers one."""
    found = subprocess.run([binary, "devices"], capture_output=True, text=True, check=True).stdout
    if "No driver offers a GPU" in found:
        pytest.skip("no driver offers a GPU (Debian: apt-get install mesa-vulkan-drivers libvulkan1)")
    return DEVICE


@pytest.fixture(scope="module")
def device_server(start, on_device):
    with start(*on_device) as server:
        yield server


def answer(client, text):
    chat = client.chat.completions.create(
        model="throng-starter",
        messages=[{"role": "user", "content": text}],
        max_tokens=12,
        temperature=0,
        logprobs=True,
    )
    choice = chat.choices[0]
    return choice.message.content, [token.logprob for token in choice.logprobs.content]


def test_the_page_is_there(device_server):
    page = requests.get(device_server.url)
    assert page.status_code == 200 and "<html" in page.text


def test_four_users_get_the_answers_of_each_alone(device_server):
    client = device_server.client()
    texts = [f"What is {n} plus 5?" for n in range(4)]
    alone = [answer(client, text) for text in texts]
    with ThreadPoolExecutor(4) as users:
        together = list(users.map(lambda text: answer(client, text), texts))
    assert together == alone


def test_a_tool_is_called_where_it_is_required(device_server):
    tool = {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer", "maximum": 9}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }
    chat = device_server.client().chat.completions.create(
        model="throng-starter",
        messages=[{"role": "user", "content": "What is 2 plus 5?"}],
        tools=[tool],
        tool_choice="required",
        max_tokens=100,
        temperature=0,
    )
    call = chat.choices[0].message.tool_calls[0]
    assert call.function.name == "add" and json.loads(call.function.arguments)["a"] <= 9


@pytest.mark.parametrize("name", ["bert-cls", "qwen3-embedding"])
def test_embeddings_are_those_of_transformers(start, on_device, name):
    texts, vectors = expected(name)
    with start(FIXTURES / name, *on_device) as server:
        answer = server.client().embeddings.create(model=name, input=texts, encoding_format="float")
        for item, vector in zip(answer.data, vectors):
            assert_close(item.embedding, vector)


def test_images_are_seen(start, on_device):
    cases = json.loads((OWN / "cases.json").read_text())
    case = next(case for case in cases["cases"] if case["images"] and all(name.endswith(".png") for name in case["images"]))
    with start(OWN, *on_device) as server:
        chat = server.client().chat.completions.create(
            model=OWN.name,
            messages=messages_of(case),
            max_tokens=16,
            temperature=0,
            extra_body={"ignore_eos": True, "return_token_ids": True, "skip_special_tokens": False},
        )
    assert chat.choices[0].token_ids == integers(OWN / "expected.safetensors", f"{case['name']}.greedy")
