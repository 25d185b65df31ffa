"""A trained model behind OpenAI's library: chat, tools, JSON, stop strings, sixteen users, drafts, keys and values of eight bits.

The model is SmolLM2-135M-Instruct. What it says is not judged, but for questions that it surely answers; what the server makes of it is.
"""

import concurrent.futures
import json

import jsonschema_rs
import requests
from packages import TEXT

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
GREEDY = {"model": "smollm2", "temperature": 0}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def text_of(server, **body):
    """The text of a completion, and the usage."""
    answer = requests.post(server.url + "/v1/completions", json={**GREEDY, **body}, timeout=600)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"], answer.json()["usage"]


def test_chat_answers_and_streams_the_same(smollm2):
    client = smollm2.client()
    whole = client.chat.completions.create(messages=QUESTION, max_tokens=40, **GREEDY).choices[0]
    assert "Paris" in whole.message.content
    assert whole.finish_reason == "stop"
    stream = client.chat.completions.create(messages=QUESTION, max_tokens=40, stream=True, **GREEDY)
    parts = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(parts) == whole.message.content
    assert len(parts) > 3


def test_a_stop_string_ends_the_text_before_it(smollm2):
    whole, _ = text_of(smollm2, prompt="One, two, three, four,", max_tokens=40)
    stop = whole[6:12]
    cut, _ = text_of(smollm2, prompt="One, two, three, four,", max_tokens=40, stop=[stop])
    assert cut == whole[: whole.index(stop)]


def test_json_keeps_its_schema_whatever_is_sampled(smollm2):
    client = smollm2.client()
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    messages = [{"role": "user", "content": "Describe a person: name and age."}]
    for seed in range(4):
        answer = client.chat.completions.create(
            model="smollm2", messages=messages, max_tokens=120, seed=seed, temperature=1.2, response_format=form
        ).choices[0]
        if answer.finish_reason == "stop":
            jsonschema_rs.validate(PERSON, json.loads(answer.message.content))


def test_tools_work_although_the_template_has_no_format_of_calls(smollm2):
    client = smollm2.client()
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = client.chat.completions.create(
        messages=question, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=120, **GREEDY
    ).choices[0]
    (call,) = answer.message.tool_calls
    assert call.function.name == "get_weather"
    assert isinstance(json.loads(call.function.arguments)["city"], str)
    assert answer.finish_reason == "tool_calls"
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 25 degrees."}
    history = question + [answer.message.model_dump(exclude_none=True), result]
    last = client.chat.completions.create(messages=history, tools=[WEATHER], max_tokens=60, **GREEDY).choices[0]
    assert last.message.content or last.message.tool_calls


def test_sixteen_users_get_what_each_gets_alone(smollm2):
    prompts = [f"Here is a short story about the number {n}:" for n in range(16)]
    ask = lambda prompt: text_of(smollm2, prompt=prompt, max_tokens=24)[0]
    alone = [ask(prompt) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, prompts)) == alone


def test_drafts_change_no_text_and_are_accepted(start, smollm2, smollm2_path):
    passage = TEXT.read_text()[:800]
    prompt = f"{passage}\n\nThe same text once more:\n\n{passage[:120]}"
    with start(smollm2_path, "--no-speculation", "--served-model-name", "smollm2") as plain:
        expected, _ = text_of(plain, prompt=prompt, max_tokens=96)
    found, _ = text_of(smollm2, prompt=prompt, max_tokens=96)
    assert found == expected
    metrics = requests.get(smollm2.url + "/metrics", timeout=60).text
    counts = {line.split("{")[0]: float(line.split()[-1]) for line in metrics.splitlines() if "spec_decode" in line and "#" not in line}
    assert counts["vllm:spec_decode_num_accepted_tokens_total"] > 0
