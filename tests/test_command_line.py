"""The commands that need no server."""

import json
import re
import shutil
import subprocess
import time

import pytest


def throng(binary, *arguments, stdin=""):
    return subprocess.run([binary, *arguments], input=stdin, capture_output=True, text=True, timeout=120)


def test_generate_prints_the_same_text_for_the_same_seed(binary):
    arguments = ("generate", "--prompt", "Hello", "--max-tokens", "8", "--seed", "3")
    first, second = throng(binary, *arguments), throng(binary, *arguments)
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout != ""


def test_inspect_prints_sizes(binary):
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


def test_bench_prints_each_figures_share_of_the_limit(binary):
    sizes = ("--prompt-tokens", "16", "--generate-tokens", "4", "--concurrency", "2", "--json")
    answer = throng(binary, "bench", *sizes)
    assert answer.returncode == 0, answer.stderr
    line = json.loads(answer.stdout)
    limits = line["limits"]
    for phase in ("prefill", "decode"):
        limit = line[phase + "_limit"]
        assert limit["share"] == pytest.approx(line[phase + "_tokens_per_s"] / limit["tokens_per_s"])
        multiplying = (
            limit["int8_operations"] / limits["int8_operations_per_s"]
            + limit["bf16_operations"] / limits["bf16_operations_per_s"]
            + limit["f32_operations"] / limits["f32_operations_per_s"]
        )
        reading = limit["bytes"] / limits["read_bytes_per_s"]
        assert limit["binding"] == ("memory" if reading >= multiplying else "compute")
        assert limit["share"] * line[phase + "_s"] == pytest.approx(max(reading, multiplying))
    start_up = line["start_up"]
    assert start_up["ready_s"] >= start_up["load_s"] > 0
    assert start_up["load_bytes_per_s"] == pytest.approx(start_up["stored_bytes"] / start_up["load_s"])
    assert start_up["peak_memory_bytes"] > start_up["weights_bytes"]
    without = json.loads(throng(binary, "bench", *sizes, "--no-limits").stdout)
    assert not {"limits", "prefill_limit", "decode_limit"} & without.keys()


@pytest.mark.alone
def test_bench_machine_measures_without_a_model(binary):
    answer = throng(binary, "bench", "machine", "--threads", "2", "--json")
    assert answer.returncode == 0, answer.stderr
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [line["threads"] for line in lines] == [1, 2]
    for line in lines:
        assert [(read["fits"], read["pages"]) for read in line["read"]] == [
            (fits, pages)
            for fits in ("second-level cache", "last-level share", "memory")
            for pages in ("ordinary", "huge")
        ]
        assert {"f32", "bf16", "int8"} <= {peak["of"] for peak in line["arithmetic"]}
        assert all(read["bytes_per_s"] > 0 for read in line["read"])
        assert all(peak["operations_per_s"] > 0 for peak in line["arithmetic"])


def test_inspect_prints_the_compute_path_of_each_tensor(binary):
    lines = throng(binary, "inspect", "--tensors").stdout.splitlines()
    listed = lines[next(i for i, line in enumerate(lines) if line.split()[:1] == ["tensor"]) + 1 :]
    assert len(listed) > 10
    assert all(re.search(r"int8 panels|float panels|rows looked up|vector in F32", line) for line in listed)


def test_chat_answers_line_by_line(binary):
    answer = throng(binary, "chat", "--temperature", "0", "--max-tokens", "16", stdin="Hello!\n")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip()


def test_a_missing_model_is_a_clear_error(binary):
    answer = throng(binary, "inspect", "/nowhere/model.gguf")
    assert answer.returncode != 0
    assert "/nowhere/model.gguf" in answer.stderr
    assert "panicked" not in answer.stderr


def test_an_unsupported_model_type_says_what_keeps_it_from_being_read(binary, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    answer = throng(binary, "inspect", str(tmp_path))
    assert answer.returncode != 0
    assert "not supported yet: t5" in answer.stderr
    assert "lacks hidden_size" in answer.stderr


def test_a_model_that_is_quantized_already_is_not_quantized_again(binary):
    answer = throng(binary, "generate", "--quantize", "q4_k", "--prompt", "Hello")
    assert answer.returncode != 0
    assert "the model is quantized already" in answer.stderr
    assert "panicked" not in answer.stderr


def test_a_quantize_cache_without_quantize_is_refused(binary, tmp_path):
    answer = throng(binary, "generate", "--quantize-cache", str(tmp_path), "--prompt", "Hello")
    assert answer.returncode != 0
    assert "--quantize-cache needs --quantize TYPE" in answer.stderr


def test_the_version_names_commit_target_and_instructions(binary):
    answer = throng(binary, "--version")
    parts = re.fullmatch(r"throng (\d+\.\d+\.\d+) \((?:([0-9a-f]{12}), )?([a-z0-9_-]+), ([^,()]+)\)\n", answer.stdout)
    assert parts, answer.stdout
    assert parts[4] in throng(binary, "inspect").stdout


def test_help_is_short_for_the_program_and_grouped_for_serve(binary):
    short = throng(binary, "--help").stdout
    assert len(short.splitlines()) <= 50 and "throng COMMAND --help" in short
    serve = throng(binary, "serve", "--help").stdout
    for words in ("\nModel:\n", "\nServer:\n", "Maximum sequences in one step [default: 128]", "[default: 8000]"):
        assert words in serve


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_know_commands_and_flags(binary, shell):
    script = throng(binary, "completions", shell).stdout
    assert "inspect" in script and "max-num-seqs" in script
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr


def test_bash_completes_a_command(binary):
    script = throng(binary, "completions", "bash").stdout
    ask = script + '\nCOMP_WORDS=(throng insp); COMP_CWORD=1; _throng throng insp throng; echo "${COMPREPLY[@]}"\n'
    answer = subprocess.run(["bash"], input=ask, capture_output=True, text=True)
    assert answer.stdout.split() == ["inspect"], answer.stderr


def test_inspect_refuses_what_serve_would_refuse(binary, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{% if %}")
    for flags, words in (
        (("--chat-template", str(template)), "template.jinja"),
        (("--max-model-len", "100000000"), "exceeds the model's own context"),
        (("--kv-cache-memory", "1000TiB"), "are configured for keys and values"),
        (("--tokenizer", str(tmp_path)), "there is no such tokenizer"),
    ):
        answer = throng(binary, "inspect", *flags)
        assert answer.returncode == 1, (flags, answer.stdout)
        assert words in answer.stderr


def test_quantized_folders_are_refused_by_the_name_of_their_format(binary, tmp_path):
    quantizations = (
        ({"quant_method": "hqq"}, "HQQ"),
        ({"quant_method": "gptq", "bits": 5}, "bits = 5 of GPTQ"),
        ({"quant_method": "awq", "rotation": "hadamard"}, 'rotation = "hadamard" of AWQ'),
    )
    for quantization, shown in quantizations:
        config = {"model_type": "qwen3", "quantization_config": quantization}
        (tmp_path / "config.json").write_text(json.dumps(config))
        for command in ("inspect", "serve"):
            answer = throng(binary, command, str(tmp_path), *(["--port", "0"] if command == "serve" else []))
            assert answer.returncode == 1
            assert f"quantized to {shown}" in answer.stderr and "a GGUF file of it" in answer.stderr


def test_auto_fits_the_context_into_the_kv_cache(start):
    with start("--max-model-len", "auto", "--kv-cache-memory", "1MiB") as server:
        (model,) = server.client().models.list().data
        assert 0 < model.max_model_len < 1024


def test_defaults_of_the_operator_reach_requests_that_say_nothing(start, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{{ colour }}{% for m in messages %}{{ m.content }}{% endfor %}")
    flags = (
        "--chat-template",
        template,
        "--default-chat-template-kwargs",
        json.dumps({"colour": "blue " * 20}),
        "--override-generation-config",
        json.dumps({"max_new_tokens": 3}),
    )
    with start(*flags) as server:
        messages = [{"role": "user", "content": "Hi"}]
        create = server.client().chat.completions.create
        default = create(model="throng-starter", messages=messages, extra_body={"ignore_eos": True})
        assert default.usage.completion_tokens == 3
        plain = create(
            model="throng-starter", messages=messages, extra_body={"chat_template_kwargs": {"colour": ""}}
        )
        assert default.usage.prompt_tokens > plain.usage.prompt_tokens + 20


def cached(folder):
    """A cache with one model."""
    blobs = folder / "models--org--name/blobs"
    blobs.mkdir(parents=True)
    (blobs / "a").write_bytes(bytes(2048))
    return folder


def test_the_cache_is_listed_and_models_are_removed(binary, tmp_path):
    cache = cached(tmp_path / "cache")
    listed = throng(binary, "list", "--download-dir", str(cache))
    assert "org/name" in listed.stdout and "2.0 KiB" in listed.stdout
    assert "throng run NAME" in listed.stderr
    assert throng(binary, "ls", "--json", "--download-dir", str(cache)).stdout == throng(
        binary, "models", "list", "--json", "--download-dir", str(cache)
    ).stdout
    absent = throng(binary, "rm", "org/absent", "--download-dir", str(cache))
    assert absent.returncode == 1 and "org/name" in absent.stderr
    removed = throng(binary, "rm", "org/name", "--download-dir", str(cache))
    assert removed.stdout.startswith("removed org/name") and not list(cache.iterdir())


def test_run_answers_a_prompt(binary, monkeypatch):
    monkeypatch.setenv("THRONG_URL", "http://127.0.0.1:9")
    asked = ("--temperature", "0", "--max-tokens", "24")
    answer = throng(binary, "run", "throng-starter", "What is 7 plus 5?", *asked, stdin="")
    assert answer.returncode == 0 and "12" in answer.stdout, answer.stderr
    # What comes from standard input stands before it.
    piped = throng(binary, "run", "throng-starter", *asked, stdin="What is 7 plus 5?")
    assert piped.stdout == answer.stdout
    nothing = throng(binary, "run", "throng-starter", stdin="")
    assert nothing.returncode == 1 and "no prompt" in nothing.stderr


def test_run_asks_a_running_server_that_has_the_model(binary, server, monkeypatch):
    monkeypatch.setenv("THRONG_URL", server.url)
    n_before = "".join(server.output).count("/v1/chat/completions")
    answer = throng(binary, "run", "throng-starter", "What is 7 plus 5?", "--temperature", "0", stdin="")
    assert answer.returncode == 0 and "12" in answer.stdout, answer.stderr
    # The line of the log comes after the answer.
    deadline = time.monotonic() + 30
    while "".join(server.output).count("/v1/chat/completions") == n_before:
        assert time.monotonic() < deadline, "".join(server.output)
        time.sleep(0.05)
