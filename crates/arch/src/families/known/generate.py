#!/usr/bin/env python3
"""Writes `configs.jsonl` beside this file, for `throng inspect --known`, from a collection of published config.json files:

    python generate.py COLLECTION.jsonl DATE       # DATE: when they were collected

A line of the collection has `id`, `source` (a file at a commit of a public repository), `config` and perhaps `hf_quant_config`. Copies
that somebody changed, which have a remark in brackets after their id, are left out. Of each config.json only lists that no rule reads are
cut: labels, layers that were not quantized or were quantized alike, and what is inside of the configurations of vision and sound."""

import json
import pathlib
import sys

CUT = {"auto_map", "id2label", "label2id", "exclude_modules", "ignore", "ignored_layers", "modules_to_not_convert", "model_name_or_path",
       "modules_in_block_to_quantize", "block_name_to_quantize", "input_activations", "output_activations", "_name_or_path", "task_specific_params",
       "block_configs", "image_grid_pinpoints"}
INSIDE = {"vision_config", "audio_config", "speech_config"}


def shortened(value):
    if isinstance(value, list):
        return [shortened(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: ({k: v for k, v in item.items() if k == "model_type"} if key in INSIDE and isinstance(item, dict) else shortened(item))
            for key, item in fewer(value).items() if key not in CUT}


def fewer(value):
    """One layer for each algorithm, of those that ModelOpt lists one by one."""
    layers = value.get("quantized_layers")
    if not isinstance(layers, dict):
        return value
    one_each = {json.dumps(own): layer for layer, own in reversed(layers.items())}
    return {**value, "quantized_layers": {layer: json.loads(own) for own, layer in one_each.items()}}


def main(collection, date):
    lines = [json.dumps({"collected": date})]
    for entry in map(json.loads, pathlib.Path(collection).read_text().splitlines()):
        if " " in entry["id"] or "/" not in entry["id"]:
            continue
        config = shortened(entry["config"])
        if entry.get("hf_quant_config") and "quantization_config" not in config:
            config["quantization_config"] = shortened(entry["hf_quant_config"].get("quantization") or {})
        lines.append(json.dumps({"repository": entry["id"], "source": entry["source"], "config": config}, separators=(",", ":")))
    pathlib.Path(__file__).with_name("configs.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
