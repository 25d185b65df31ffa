"""The commands that need no server."""

import json
import subprocess


def throng(binary, *arguments, stdin=""):
    return subprocess.run([binary, *arguments], input=stdin, capture_output=True, text=True, timeout=120)


def test_generate_prints_the_same_text_for_the_same_seed(binary):
    arguments = ("generate", "--prompt", "Hello", "--max-tokens", "8", "--seed", "3")
    first, second = throng(binary, *arguments), throng(binary, *arguments)
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout != ""


def test_inspect_tells_sizes(binary):
    answer = throng(binary, "inspect")
    assert answer.returncode == 0, answer.stderr
    for word in ("parameters", "layers", "Q8_0", "per token"):
        assert word in answer.stdout


def test_bench_prints_one_json_object_a_line(binary):
    answer = throng(
        binary, "bench", "--prompt-tokens", "16", "--generate-tokens", "4", "--concurrency", "1,2", "--json"
    )
    assert answer.returncode == 0, answer.stderr
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [line["concurrency"] for line in lines] == [1, 2]
    assert all(line["decode_tokens_per_s"] > 0 and line["prefill_tokens_per_s"] > 0 for line in lines)


def test_chat_answers_line_by_line(binary):
    answer = throng(binary, "chat", "--temperature", "0", "--max-tokens", "16", stdin="Hello!\n")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip()


def test_a_missing_model_is_told_plainly(binary):
    answer = throng(binary, "inspect", "/nowhere/model.gguf")
    assert answer.returncode != 0
    assert "/nowhere/model.gguf" in answer.stderr
    assert "panicked" not in answer.stderr


def test_an_unsupported_model_type_lists_what_is(binary, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deepseek_v3"}))
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    answer = throng(binary, "inspect", str(tmp_path))
    assert answer.returncode != 0
    assert "not supported yet: deepseek_v3" in answer.stderr
    assert "qwen3" in answer.stderr
