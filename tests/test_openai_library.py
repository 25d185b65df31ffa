"""The official OpenAI Python library against the real binary and the starter model."""

import concurrent.futures
import json
import math

import openai
import pydantic
import pytest

MODEL = "throng-starter"
HELLO = [{"role": "user", "content": "Hello!"}]


def test_models_are_listed(client):
    names = [model.id for model in client.models.list()]
    assert MODEL in names
    assert client.models.retrieve(MODEL).id == MODEL


def test_chat_answers_with_usage(client):
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, max_tokens=32)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content.strip()
    assert answer.choices[0].finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 32


def test_stream_is_the_unary_answer_in_pieces(client):
    settings = dict(model=MODEL, messages=HELLO, temperature=0, max_tokens=32)
    unary = client.chat.completions.create(**settings)
    chunks = list(client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == unary.choices[0].message.content
    finishes = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert finishes == [unary.choices[0].finish_reason]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == unary.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_n_gives_each_choice_its_own_random_numbers(client):
    settings = dict(model=MODEL, messages=[{"role": "user", "content": "Tell me a story about a cat."}], max_tokens=24)
    answer = client.chat.completions.create(**settings, n=4, seed=7, temperature=1.2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_a_seed_repeats_and_another_differs(client):
    def sample(seed):
        messages = [{"role": "user", "content": "Tell me a story about a dog."}]
        answer = client.chat.completions.create(
            model=MODEL, messages=messages, seed=seed, temperature=1.3, max_tokens=24
        )
        return answer.choices[0].message.content

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(6)}) > 1


def test_stop_strings_are_cut_out(client):
    settings = dict(model=MODEL, messages=HELLO, temperature=0, max_tokens=32)
    whole = client.chat.completions.create(**settings).choices[0].message.content
    stop = whole[2:5]
    answer = client.chat.completions.create(**settings, stop=[stop]).choices[0]
    assert answer.message.content == whole[: whole.index(stop)]
    assert answer.finish_reason == "stop"
    streamed = client.chat.completions.create(**settings, stop=[stop], stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert text == answer.message.content


def test_logprobs_are_those_of_the_greedy_choice(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, temperature=0, max_tokens=8, logprobs=True, top_logprobs=5
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert len(token.top_logprobs) == 5
        assert token.logprob == token.top_logprobs[0].logprob <= 0
        assert sum(math.exp(top.logprob) for top in token.top_logprobs) <= 1.0001
        assert bytes(token.bytes).decode(errors="replace") == token.token or "\ufffd" in token.token


def test_completions_take_text_and_lists_and_echo(client):
    answer = client.completions.create(model=MODEL, prompt=["One two", "Three"], max_tokens=4, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1]
    echoed = client.completions.create(
        model=MODEL, prompt="One two", max_tokens=2, temperature=0, echo=True, logprobs=1
    ).choices[0]
    assert echoed.text.startswith("One two")
    assert echoed.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in echoed.logprobs.token_logprobs[1:])
    assert echoed.logprobs.text_offset[0] == 0


def test_ten_users_get_what_one_user_gets(client):
    def ask(n):
        messages = [{"role": "user", "content": f"What is {n} plus {n + 1}?"}]
        stream = client.chat.completions.create(
            model=MODEL, messages=messages, temperature=0, max_tokens=16, stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    alone = [ask(n) for n in range(10)]
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        together = list(pool.map(ask, range(10)))
    assert together == alone


def test_a_second_turn_finds_its_prefix_cached(client):
    messages = [{"role": "user", "content": "Please remember these words: " + "apple pear plum " * 12}]
    settings = dict(model=MODEL, temperature=0, max_tokens=4)
    client.chat.completions.create(**settings, messages=messages)
    again = client.chat.completions.create(**settings, messages=messages)
    assert again.usage.prompt_tokens_details.cached_tokens >= 16


def test_faults_are_the_library_s_typed_exceptions(client, server):
    settings = dict(model=MODEL, messages=HELLO)
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**settings, top_p=1.5)
    assert raised.value.param == "top_p"
    assert raised.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as raised:
        client.chat.completions.create(model="nobody", messages=HELLO)
    assert raised.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 20000}])
    assert raised.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**settings, extra_body={"guided_regex": "("})
    assert (raised.value.param, raised.value.code) == ("guided_regex", "invalid_regex")
    with pytest.raises(openai.NotFoundError):
        client.post("/nowhere", body={}, cast_to=object)


def test_answers_are_accepted_as_messages(client):
    # The library's parsers refuse an answer that ends at its token limit.
    settings = dict(model=MODEL, temperature=0, max_tokens=64, stop=[" ", "."])
    message = client.chat.completions.create(**settings, messages=HELLO).choices[0].message
    parsed = client.chat.completions.parse(**settings, messages=HELLO).choices[0].message
    with client.chat.completions.stream(**settings, messages=HELLO) as stream:
        streamed = stream.get_final_completion().choices[0].message
    for spoken in (message, parsed, streamed):
        for form in (spoken, spoken.model_dump(), spoken.model_dump(exclude_none=True), spoken.model_dump(mode="json")):
            messages = [*HELLO, form, {"role": "user", "content": "Go on."}]
            assert client.chat.completions.create(**settings, messages=messages).choices


def called(content, **more):
    """A tool call and its result, with the further fields that frameworks write."""
    function = {"name": "add", "arguments": '{"a": 2, "b": 2}', **more.pop("function", {})}
    call = {"id": "call_1", "type": "function", "function": function, **more.pop("call", {})}
    answer = {"role": "tool", "tool_call_id": "call_1", "content": "4", **more.pop("answer", {})}
    return [{"role": "assistant", "content": content, "tool_calls": [call], **more}, answer]


NULLS = dict.fromkeys(("refusal", "audio", "function_call", "annotations", "name", "reasoning_content"))


@pytest.mark.parametrize(
    "messages",
    [
        called(None),
        called("", answer={"name": "add"}),
        called(None, **NULLS),
        called(None, parsed=None, function={"parsed_arguments": {"a": 2, "b": 2}}, call={"index": 0}),
        called("", call={"extra_content": {"google": {"thought_signature": "x"}}}),
        called(None, provider_specific_fields={}, call={"provider_specific_fields": {"x": 1}}),
        called([{"type": "text", "text": "I add."}], answer={"content": [{"type": "text", "text": "4"}]}),
        [{"role": "assistant", "content": "Well.", "tool_calls": None, **NULLS}],
        [{"role": "assistant", "content": "Well.", "tool_calls": []}],
        [{"role": "assistant", "content": None, "refusal": "No."}],
        [{"role": "system", "content": "Be brief.", "name": None}],
        [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}], "name": "a"}],
        [{"role": "developer", "content": "Be brief."}],
    ],
)
def test_messages_as_frameworks_write_them(client, messages):
    messages = [*HELLO, *messages, {"role": "user", "content": "Go on."}]
    assert client.chat.completions.create(model=MODEL, messages=messages, max_tokens=2).choices


def test_parameters_as_frameworks_write_them(client):
    class Add(pydantic.BaseModel):
        """Adds two numbers."""

        a: int = pydantic.Field(description="the first")
        b: int | None = None

    settings = dict(model=MODEL, messages=HELLO, max_tokens=2)
    tool = openai.pydantic_function_tool(Add)
    loose = {"type": "function", "function": {"name": "now", "description": "", "parameters": {}, "strict": None}}
    plain = {"type": "function", "function": {"name": "then"}}
    unset = dict.fromkeys(("stop", "seed", "logit_bias", "response_format", "tools", "tool_choice", "stream_options"))
    for more in (
        dict(tools=[tool, loose, plain], tool_choice="none"),
        dict(tools=[tool], tool_choice="none", parallel_tool_calls=False),
        dict(stream=True, stream_options={"include_usage": True, "include_obfuscation": False}),
        dict(user="someone", metadata={"run": "1"}, store=False, service_tier="auto", n=1, stream=False),
        dict(prompt_cache_key="k", safety_identifier="s", modalities=["text"], response_format={"type": "text"}),
        dict(extra_body=unset),
    ):
        answer = client.chat.completions.create(**settings, **more)
        assert list(answer) if more.get("stream") else answer.choices


ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}


def test_tools_are_called_and_their_results_taken(client):
    messages = [{"role": "user", "content": "What is 17 + 25? Use the tool."}]
    settings = dict(model=MODEL, tools=[ADD], temperature=0, max_tokens=80)
    choice = client.chat.completions.create(messages=messages, **settings).choices[0]
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content, call.function.name) == ("tool_calls", None, "add")
    with client.chat.completions.stream(messages=messages, **settings) as stream:
        streamed = stream.get_final_completion().choices[0]
    (again,) = streamed.message.tool_calls
    assert (again.function.name, again.function.arguments) == (call.function.name, call.function.arguments)
    assert streamed.finish_reason == "tool_calls"
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"a", "b"}
    reply = {"role": "tool", "tool_call_id": call.id, "content": str(arguments["a"] + arguments["b"])}
    answer = client.chat.completions.create(messages=[*messages, choice.message, reply], **settings)
    assert answer.choices[0].message.content
    silent = client.chat.completions.create(messages=messages, tool_choice="none", **settings)
    assert silent.choices[0].message.tool_calls is None


def test_closing_a_stream_early_does_not_affect_the_server(client):
    for _ in range(5):
        stream = client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=500, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()
    assert client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4).choices


def test_keys_are_required_when_set(start):
    with start("--api-key", "secret-one") as server:
        with pytest.raises(openai.AuthenticationError):
            server.client(api_key="wrong").models.list()
        assert list(server.client(api_key="secret-one").models.list())


def test_keys_that_are_meant_for_other_servers_change_nothing(client):
    settings = dict(model=MODEL, temperature=0, max_tokens=16)
    plain = client.chat.completions.create(**settings, messages=HELLO).choices[0].message.content
    text = {"type": "text", "text": "Hello!", "cache_control": {"type": "persistent"}}
    body = {"provider": {"order": ["x"]}, "prediction": {"type": "content", "content": "x"}, "verbosity": "low"}
    raw = client.chat.completions.with_raw_response.create(
        **settings, messages=[{"role": "user", "content": [text], "opts": {"visible": True}}], extra_body=body
    )
    assert raw.parse().choices[0].message.content == plain
    names = raw.headers["x-throng-ignored"].split(", ")
    content = "messages[].content[].cache_control"
    assert set(names) == {content, "messages[].opts", "provider", "prediction", "verbosity"}
    thought = {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, "Hi."]}
    history = [*HELLO, thought, {"role": "user", "content": "And you?"}]
    assert client.chat.completions.create(**settings, messages=history).choices[0].finish_reason


def test_a_message_with_a_prefix_is_continued(client):
    settings = dict(model=MODEL, temperature=0, max_tokens=16)
    last = {"role": "assistant", "content": "Once upon"}
    asked = {"continue_final_message": True, "add_generation_prompt": False}
    expected = client.chat.completions.create(**settings, messages=[*HELLO, last], extra_body=asked)
    for key in ("prefix", "partial"):
        answer = client.chat.completions.create(**settings, messages=[*HELLO, {**last, key: True}])
        assert answer.choices[0].message.content == expected.choices[0].message.content
        assert answer.usage.prompt_tokens == expected.usage.prompt_tokens


def test_base_addresses_with_a_version_too_many_or_too_few_work(server):
    for base in ("", "/", "/v1", "/v1/", "/v1/v1"):
        client = openai.OpenAI(base_url=server.url + base, api_key="none", max_retries=0, timeout=120)
        assert MODEL in [model.id for model in client.models.list()], base
        assert client.models.retrieve(MODEL).id == MODEL
        answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2)
        assert answer.usage.completion_tokens == 2, base
        chunks = list(client.completions.create(model=MODEL, prompt="Hi", max_tokens=2, stream=True))
        assert chunks[-1].choices[0].finish_reason, base


def test_an_unknown_model_names_those_that_there_are(client):
    with pytest.raises(openai.NotFoundError, match="Models to use: 'throng-starter'"):
        client.chat.completions.create(model="gpt-4o", messages=HELLO)
