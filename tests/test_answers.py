"""Answers of models that say a given text: calls whose values have tags and quotation marks in them, ids, recipients."""

import json

import pytest
import replay

KIMI = [
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
]
HARMONY = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|return|>"]


def tool(name, *parameters):
    schema = {"type": "object", "properties": {parameter: {"type": "string"} for parameter in parameters}}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [tool("get_weather", "city"), tool("write_file", "path", "content")]


def written(parameters, begin="<parameter={}>\n", end="\n</parameter>\n"):
    values = "".join(begin.format(name) + value + end for name, value in parameters.items())
    return f"<tool_call>\n<function=write_file>\n{values}</function>\n</tool_call>"


CASES = {
    "a tag that is none of the parameters": (
        "qwen3_coder",
        [written({"content": "the tag <parameter=x> is text", "path": "/tmp/b"})],
        {},
        ("write_file", {"content": "the tag <parameter=x> is text", "path": "/tmp/b"}),
    ),
    "the end of a function that goes on": (
        "qwen3_coder",
        [written({"content": "ends with </function> and goes on", "path": "/tmp/c"})],
        {},
        ("write_file", {"content": "ends with </function> and goes on", "path": "/tmp/c"}),
    ),
    "line breaks of the value": (
        "minimax_m2",
        [
            '<minimax:tool_call>\n<invoke name="write_file">\n<parameter name="path">/tmp/a</parameter>\n'
            '<parameter name="content">line\n</parameter>\n</invoke>\n</minimax:tool_call>'
        ],
        {},
        ("write_file", {"path": "/tmp/a", "content": "line\n"}),
    ),
    "three quotation marks": (
        "pythonic",
        ["[write_file(content='''it's \"two\"\nlines''', path='/tmp/a')]"],
        {},
        ("write_file", {"content": "it's \"two\"\nlines", "path": "/tmp/a"}),
    ),
    "a recipient without its kind": (
        "openai",
        ["<|channel|>", "commentary to=get_weather ", "<|constrain|>", "json", "<|message|>", '{"city": "Paris"}'],
        {"control": HARMONY, "template": replay.MESSAGES + "<|start|>assistant"},
        ("get_weather", {"city": "Paris"}),
    ),
    "an id of its own": (
        "kimi_k2",
        [KIMI[0], KIMI[1], "functions.get_weather:0", KIMI[2], '{"city": "Paris"}', KIMI[3], KIMI[4]],
        {"added": KIMI},
        ("get_weather", {"city": "Paris"}),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_calls_are_read_as_the_model_wrote_them(start, tmp_path, name):
    parser, parts, options, (function, arguments) = CASES[name]
    replay.write(tmp_path / "says.gguf", parts, **options)
    with start(tmp_path / "says.gguf", "--threads", 1, "--tool-call-parser", parser) as server:
        client = server.client()
        request = {"model": "says", "tools": TOOLS, "temperature": 0, "max_tokens": 300}
        messages = [{"role": "user", "content": "Do it."}]
        choice = client.chat.completions.create(messages=messages, **request).choices[0]
        (call,) = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == (function, arguments)
        assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
        assert parser != "kimi_k2" or call.id == "functions.get_weather:0"
        # Every cut of the answer can be sent back.
        for n in range(1, 30):
            cut = client.chat.completions.create(messages=messages, **{**request, "max_tokens": n}).choices[0].message
            calls = [{"role": "tool", "tool_call_id": call.id, "content": "done"} for call in cut.tool_calls or []]
            more = [*messages, cut, *calls, {"role": "user", "content": "Go on."}]
            client.chat.completions.create(messages=more, **{**request, "max_tokens": 1})


def test_offsets_of_an_echo_count_characters_of_the_text(client):
    request = {"model": "throng-starter", "prompt": "é🎉 The sky is", "echo": True, "max_tokens": 2, "temperature": 0, "logprobs": 0}
    choice = client.completions.create(**request).choices[0]
    offsets, tokens = choice.logprobs.text_offset, choice.logprobs.tokens
    assert offsets == sorted(offsets)
    for token, offset in zip(tokens, offsets):
        assert "\ufffd" in token or choice.text[offset : offset + len(token)] == token
