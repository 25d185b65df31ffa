"""The Python recipes of docs/clients.md, as they stand there, against a running server."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs/clients.md"
ADDRESS = "http://127.0.0.1:8000"
RECIPES = re.findall(r"### (\S+)\n\n```python\n(.*?)```", PAGE.read_text(), re.S)


def test_the_page_has_recipes():
    assert [name for name, _ in RECIPES] == ["Anthropic", "Ollama", "LangChain", "LlamaIndex", "LiteLLM", "pydantic-ai", "instructor"]


@pytest.mark.parametrize(("name", "code"), RECIPES, ids=[name for name, _ in RECIPES])
def test_a_recipe_gets_an_answer(base_url, name, code):
    assert ADDRESS in code
    done = subprocess.run(
        [sys.executable, "-c", code.replace(ADDRESS, base_url.removesuffix("/v1"))], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
