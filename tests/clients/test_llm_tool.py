"""The command line tool `llm`, set up as its documentation says for an OpenAI-compatible server."""

import json

import pytest
from click.testing import CliRunner
from llm.cli import cli

from conftest import MODEL


@pytest.fixture(scope="module")
def llm(base_url, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llm")
    chat = dict(model_id="throng", model_name=MODEL, api_base=base_url, supports_tools=True, supports_schema=True)
    text = dict(model_id="throng-text", model_name=MODEL, api_base=base_url, completion=True)
    (folder / "extra-openai-models.yaml").write_text(json.dumps([chat, text]))

    def run(*arguments, model="throng"):
        # In this process, because the tool takes seconds to import.
        arguments = ["-m", model, *arguments, "-o", "temperature", "0", "-o", "max_tokens", "80"]
        done = CliRunner(env={"LLM_USER_PATH": str(folder)}).invoke(cli, arguments)
        assert done.exit_code == 0, done.output
        return done.stdout, done.stderr

    return run


def test_a_prompt_is_answered_whole_and_streamed(llm):
    whole, _ = llm("Hello!", "--no-stream")
    assert whole.strip() and llm("Hello!")[0] == whole


def test_a_conversation_goes_on(llm):
    llm("Hello!")
    assert llm("-c", "How are you?")[0].strip()


def test_a_schema_is_met(llm):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    for more in ([], ["--no-stream"]):
        assert set(json.loads(llm("Give me a person.", "--schema", json.dumps(schema), *more)[0])) == {"name", "age"}


def test_a_tool_is_called_and_its_result_taken(llm):
    functions = 'def add(a: float, b: float) -> float:\n    "Adds two numbers"\n    return a + b\n'
    for more in ([], ["--no-stream"]):
        answer, log = llm("What is 17 + 25? Use the tool.", "--functions", functions, "--td", *more)
        assert "Tool call: add" in log and answer.strip()


def test_text_completions(llm):
    assert llm("Once upon", model="throng-text")[0].strip()
