"""`throng inspect` on the folders of published repositories: each is made anew from its `config.json` and the names, types and shapes
of its tensors, whose bytes are holes (`../shared/configs`; without it, the tests are skipped)."""

import json
import re
import subprocess
import sys

import pytest
from conftest import ROOT

CONFIGS = ROOT.parent / "shared/configs"
# A folder of a hundred thousand tensors in a debug build, on a machine that is busy.
LIMIT_S = 300


def entries():
    path = CONFIGS / "configs.jsonl"
    if not path.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason="../shared/configs is absent"))]
    return [pytest.param(entry, id=entry["id"]) for entry in map(json.loads, path.read_text().splitlines())]


@pytest.fixture
def inspect(binary, tmp_path):
    """Runs `throng inspect` on the folder of an entry, with changes to its configuration and its tensors."""
    if not CONFIGS.exists():
        pytest.skip("../shared/configs is absent")
    if str(CONFIGS) not in sys.path:
        sys.path.insert(0, str(CONFIGS))
    import sparse_checkpoint

    def run(entry, *flags, change=lambda config: None, tensors=lambda tensors: tensors):
        config = json.loads(json.dumps(entry["config"]))
        change(config)
        stored = sparse_checkpoint.unfold(entry.get("tensors") or [])
        sparse_checkpoint.write(tmp_path / "folder", config, tensors(stored), entry.get("hf_quant_config"))
        arguments = [binary, "inspect", *flags, str(tmp_path / "folder")]
        return subprocess.run(arguments, capture_output=True, text=True, timeout=LIMIT_S)

    return run


def is_accepted(result):
    """Whether all was read; a model that is larger than the machine is refused in the end, for its size."""
    for_its_size = "throng serve would not start" in result.stderr and "keys and values" in result.stderr
    return result.returncode == 0 or for_its_size


def by_id(part):
    if not CONFIGS.exists():
        pytest.skip("../shared/configs is absent")
    lines = (CONFIGS / "configs.jsonl").read_text().splitlines()
    return next(entry for entry in map(json.loads, lines) if part in entry["id"])


# What is refused of families that are supported, and why.
REFUSED = {
    "deepseek-ai/deepseek-vl2-tiny (language part)": "head size = 0",
    "Skywork/Skywork-Reward-Llama-3.1-8B-v0.2": None,
    "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": "--draft-model",
    "Alibaba-NLP/gte-Qwen2-7B-instruct": "no modules.json",
}


def as_published(entry):
    """The single experts of Llama 4 as matrices `[out, in]`: the collection takes them apart as if the tensor of all experts were
    `[experts, out, in]`, and it is `[experts, in, out]`."""
    if entry["family"] != "llama4":
        return lambda tensors: tensors
    hidden, width = (entry["config"]["text_config"][key] for key in ("hidden_size", "intermediate_size"))
    rows = {"gate_proj": width, "up_proj": width, "down_proj": hidden}

    def corrected(name, dtype, shape):
        found = re.search(r"experts\.\d+\.(\w+)\.weight(_scale)?$", name)
        if found is None:
            return name, dtype, shape
        n_rows = rows[found[1]]
        n_columns = width if found[1] == "down_proj" else hidden
        return name, dtype, [n_rows, 1 if found[2] else n_columns]

    return lambda tensors: [corrected(*tensor) for tensor in tensors]


@pytest.mark.parametrize("entry", entries())
def test_a_published_folder_is_read_or_refused_for_a_true_reason(inspect, entry):
    result = inspect(entry, tensors=as_published(entry))
    if entry["expect"] == "accept":
        if entry.get("tensors"):
            assert is_accepted(result), result.stderr
        else:
            assert "lacks the tensor" in result.stderr, result.stderr
    elif entry["expect"] == "refuse":
        # One that is like Llama but for its name has no tensors here.
        reasons = ("not supported yet", "lacks the tensor")
        assert result.returncode == 1 and any(reason in result.stderr for reason in reasons), result.stderr
    else:
        reason = REFUSED.get(entry["id"])
        assert is_accepted(result) if reason is None else reason in result.stderr, result.stderr


def test_a_folder_without_tensors_is_refused(inspect):
    result = inspect(by_id("Qwen/Qwen3-0.6B"), tensors=lambda tensors: [])
    assert result.returncode == 1 and "lacks the tensor" in result.stderr, result.stderr


def test_an_untied_checkpoint_without_an_output_projection_is_refused(inspect):
    def headless(tensors):
        return [tensor for tensor in tensors if tensor[0] != "lm_head.weight"]

    result = inspect(by_id("Meta-Llama-3-8B-Instruct"), tensors=headless)
    assert result.returncode == 1 and "lacks the tensor lm_head.weight" in result.stderr, result.stderr


def test_reward_models_and_other_heads_are_refused(inspect):
    for head in ("Qwen2ForRewardModel", "Qwen2ForTokenClassification"):
        result = inspect(by_id("Qwen/Qwen2.5-0.5B"), change=lambda config: config.update(architectures=[head]))
        assert result.returncode == 1 and head in result.stderr, result.stderr


def test_keys_that_nothing_reads_are_named_and_refused_when_that_is_asked_for(inspect):
    entry = by_id("Qwen/Qwen2.5-0.5B")
    change = lambda config: config.update(spam_size=3, _note=1, unsloth_fixed=True)  # noqa: E731
    result = inspect(entry, change=change)
    assert result.returncode == 0 and "keys not read" in result.stdout and "spam_size" in result.stdout
    assert "unsloth_fixed" not in result.stdout + result.stderr
    result = inspect(entry, "--strict-config", change=change)
    assert result.returncode == 1 and "spam_size" in result.stderr, result.stderr
    result = inspect(entry, change=lambda config: config.update(logit_scale=0.5))
    assert result.returncode == 1 and "logit_scale = 0.5" in result.stderr, result.stderr


def test_tensors_that_nothing_reads_are_counted_and_named(inspect):
    more = [("mtp.layers.0.up.weight", "BF16", [8, 8]), ("mtp.layers.1.up.weight", "I64", [8]), ("codes", "BOOL", [4])]
    result = inspect(by_id("Qwen/Qwen2.5-0.5B"), tensors=lambda tensors: tensors + more)
    assert result.returncode == 0, result.stderr
    assert "tensors not read" in result.stdout and "mtp.layers.*.up.weight" in result.stdout, result.stdout


def test_quantizers_are_refused_by_name(inspect):
    entry = by_id("Qwen/Qwen2.5-0.5B")
    methods = {"bitsandbytes": "bitsandbytes", "hqq": "HQQ", "quark": "Quark", "torchao": "torchao", "exl2": "EXL2", "bitnet": "BitNet"}
    for method, name in methods.items():
        result = inspect(entry, change=lambda config: config.update(quantization_config={"quant_method": method}))
        assert result.returncode == 1 and name in result.stderr, result.stderr
    of_mlx = {"bits": 4, "group_size": 64}
    for key in ("quantization", "quantization_config"):
        result = inspect(entry, change=lambda config: config.update({key: of_mlx}))
        assert result.returncode == 1 and "MLX" in result.stderr, result.stderr
