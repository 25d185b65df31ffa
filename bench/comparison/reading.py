"""Parses the output of the two engines' tools. Does not know how they were started."""

import json


def objects(text):
    """The JSON objects among the lines of a tool's output."""
    for line in text.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def llama_bench(text):
    """tokens/s of the one test that llama-bench (-o jsonl) ran."""
    (result,) = objects(text)
    return result["avg_ts"]


def llama_batched_bench(text, users):
    """tokens/s of this many users together while they generate, and the seconds from the first prompt to the last token
    (--output-format jsonl). Its last line can be missing: the program ends without waiting for its own log."""
    (result,) = [result for result in objects(text) if result["pl"] == users]
    return {"decode": result["speed_tg"], "all_s": result["t"]}


def throng_bench(text):
    """tokens/s of the prompts and, once each user has its first token, of all users together; the seconds from the
    first prompt to the last token (--json)."""
    (result,) = objects(text)
    return {
        "prefill": result["prefill_tokens_per_s"],
        "decode": result["decode_tokens_per_s"],
        "all_s": result["total_s"],
    }
