#!/usr/bin/env python3
"""Writes `keys.jsonl` beside this file: for each `model_type` that Throng loads, the keys of a `config.json` that the modelling and
configuration code of transformers reads for text, with their defaults.

    pip install transformers==VERSION        # the version in the first line of keys.jsonl
    python generate.py                       # writes keys.jsonl
    python generate.py --check               # fails if the file is not what it would write

Nothing is imported from transformers: its source is parsed. The keys of a model are the attributes of names like `config` and
`self.config` in the classes and functions that its text classes reach in its own modelling file, the attributes that the methods of
its configuration class read, and what the functions for masks read for all models."""

import ast
import importlib.metadata
import importlib.util
import json
import pathlib
import sys

# Our `model_type`: the module of transformers, where its name is another.
MODULES = {
    **{name: name for name in (
        "bert", "camembert", "cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "exaone4", "falcon_h1", "gemma", "gemma2", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt_oss", "granite",
        "granitemoe", "granitemoehybrid", "granitemoeshared", "gte", "hunyuan_v1_dense", "hunyuan_v1_moe", "internlm3", "jina_embeddings_v3", "deepseek_v2", "deepseek_v3", "deepseek_v32", "lfm2", "lfm2_moe", "llama", "minicpm3", "minimax_m2", "ministral3", "mistral", "mistral4",
        "mixtral", "modernbert", "mpnet", "nemotron_h", "nomic_bert", "olmo2", "olmo3", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
        "qwen3_next", "roberta", "seed_oss", "smollm3",
    )},
    "gemma3_text": "gemma3", "gemma4_text": "gemma4", "llama4_text": "llama4", "muse_glimmer_text": "muse_glimmer",
    "qwen2_vl": "qwen2_vl", "qwen2_vl_text": "qwen2_vl", "qwen2_5_vl": "qwen2_5_vl", "qwen2_5_vl_text": "qwen2_5_vl",
    "qwen3_vl": "qwen3_vl", "qwen3_vl_text": "qwen3_vl", "qwen3_5": "qwen3_5", "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe": "qwen3_5_moe", "qwen3_5_moe_text": "qwen3_5_moe", "xlm-roberta": "xlm_roberta",
    "qwen3_vl_moe": "qwen3_vl_moe", "qwen3_vl_moe_text": "qwen3_vl_moe", "kimi_k2": "deepseek_v3", "minicpm": "minicpm3", "hunyuan": "hunyuan_v1_moe", "new": "gte", "deberta-v2": "deberta_v2",
}
# Modules that have a configuration and compute with the code of another one.
MODELLING = {"internlm3": "llama"}
# Of classes of configurations: attributes that are no keys.
NO_KEYS = {"model_type", "base_config_key", "sub_configs", "attribute_map", "keys_to_ignore_at_inference", "base_model_tp_plan",
           "base_model_pp_plan", "base_model_ep_plan", "default_theta", "to_dict", "get_text_config", "auto_map", "architectures",
           "name_or_path", "transformers_version", "text_config", "vision_config", "audio_config", "get", "keys", "items", "dtype",
           "torch_dtype"}
MISSING = object()


def source(package, *path):
    return ast.parse(package.joinpath(*path).read_text())


def is_config(node):
    """`config`, `self.config`, `text_config`, `self.text_config`, `config.text_config`."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in ("config", "text_config", "text_cfg", "cfg")


def reads(tree, is_source=is_config):
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and is_source(node.value):
            found.add(node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            target, key = (node.args + [None, None])[:2]
            if target is not None and is_source(target) and isinstance(key, ast.Constant) and isinstance(key.value, str):
                found.add(key.value)
    return {key for key in found if key not in NO_KEYS and not key.startswith("_") and not key.startswith("get_")}


def text_reads(tree):
    """What the classes for text, and all that they name, read."""
    parts = {}
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            parts[node.name] = node
        elif isinstance(node, ast.Assign):
            parts.update({target.id: node for target in node.targets if isinstance(target, ast.Name)})
    classes = [name for name, node in parts.items() if isinstance(node, ast.ClassDef)]
    ends = ("TextModel", "ForCausalLM", "ForSequenceClassification")
    todo = [name for name in classes if name.endswith(ends)]
    if not any(name.endswith(("TextModel", "ForCausalLM")) for name in todo) or any("Bert" in name or "Roberta" in name for name in todo):
        todo += [name for name in classes if name.endswith("Model") and not name.endswith("PreTrainedModel")]
    # A classifier over an image is no text.
    if any(name.endswith("TextModel") for name in todo):
        todo = [name for name in todo if name.endswith(("TextModel", "ForCausalLM"))]
    seen, found = set(), set()
    while todo:
        name = todo.pop()
        # What all classes of a module derive from names those for images and sounds.
        if name in seen or name not in parts or name.endswith("PreTrainedModel"):
            continue
        seen.add(name)
        found |= reads(parts[name])
        todo += [node.id for node in ast.walk(parts[name]) if isinstance(node, ast.Name)]
    return found


def configuration(tree, model_type):
    """Defaults, other names, and keys that the methods of the configuration class read."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def literal(node):
        try:
            return ast.literal_eval(node)
        except ValueError:
            return MISSING

    def type_of(node):
        values = [item.value for item in node.body if isinstance(item, ast.Assign) and item.targets[0].id == "model_type"]
        return literal(values[0]) if values else None

    of_text = [node for node in classes.values() if node.name.endswith("TextConfig")]
    chosen = of_text or [node for node in classes.values() if type_of(node) == model_type] or list(classes.values())[-1:]
    defaults, aliases, read = {}, {}, set()
    for node in chosen[:1]:
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                defaults[item.target.id] = MISSING if item.value is None else literal(item.value)
            elif isinstance(item, ast.Assign) and item.targets[0].id == "attribute_map":
                aliases = literal(item.value)
            elif isinstance(item, ast.FunctionDef):
                if item.name == "__init__":
                    names = [argument.arg for argument in item.args.args][1:]
                    values = [MISSING] * (len(names) - len(item.args.defaults)) + [literal(value) for value in item.args.defaults]
                    defaults.update(zip(names, values))
                read |= reads(item, lambda value: isinstance(value, ast.Name) and value.id == "self")
                for call in ast.walk(item):
                    if (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in ("pop", "get")
                            and isinstance(call.func.value, ast.Name) and call.func.value.id == "kwargs" and call.args
                            and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)):
                        read.add(call.args[0].value)
    methods = {item.name for node in chosen[:1] for item in node.body if isinstance(item, ast.FunctionDef)}
    return {k: v for k, v in defaults.items() if k not in NO_KEYS}, aliases, read - methods


def lines():
    package = pathlib.Path(importlib.util.find_spec("transformers").origin).parent
    yield {"transformers": importlib.metadata.version("transformers")}
    common = reads(source(package, "masking_utils.py"))
    for model_type, module in sorted(MODULES.items()):
        folder = package / "models" / module
        if not folder.is_dir():
            print(f"transformers has no {module}", file=sys.stderr)
            continue
        modelling = MODELLING.get(module, module)
        found = text_reads(source(package / "models" / modelling, f"modeling_{modelling}.py")) | common
        defaults, aliases, read = configuration(source(folder, f"configuration_{module}.py"), model_type)
        keys = {key: defaults[key] for key in sorted(found | read) if defaults.get(key, MISSING) is not MISSING}
        unset = sorted(key for key in found | read if defaults.get(key, MISSING) is MISSING)
        yield {"model_type": model_type, "module": module, "keys": keys, "without_default": unset, "aliases": aliases}


def main():
    path = pathlib.Path(__file__).with_name("keys.jsonl")
    text = "".join(json.dumps(line) + "\n" for line in lines())
    if "--check" not in sys.argv[1:]:
        path.write_text(text)
    elif path.read_text() != text:
        sys.exit(f"{path.name} is not what this version of transformers gives: run {pathlib.Path(__file__).name}")


if __name__ == "__main__":
    main()
