"""Parses the output of the engines' tools. Does not know how they were started."""

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


def ik_bench(text):
    """tokens/s of the one test that ik_llama.cpp's llama-bench (-o json) ran."""
    (result,) = json.loads(text)
    return result["avg_ts"]


def ik_batched_bench(text, users):
    """As `llama_batched_bench`, from the table that ik_llama.cpp's llama-batched-bench prints among its log: PP, TG, B,
    N_KV, T_PP, S_PP, T_TG, S_TG, T, S."""
    rows = [line.strip().strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    (row,) = [row for row in rows if len(row) == 10 and row[2].strip() == str(users)]
    return {"decode": float(row[7]), "all_s": float(row[8])}


def throng_bench(text):
    """tokens/s of the prompts and, once each user has its first token, of all users together; the seconds from the
    first prompt to the last token; what the machine's limits admit, where they were measured (--json)."""
    (result,) = objects(text)
    return {
        "prefill": result["prefill_tokens_per_s"],
        "decode": result["decode_tokens_per_s"],
        "all_s": result["total_s"],
        **{key: result[key]["tokens_per_s"] for key in ("prefill_limit", "decode_limit") if result.get(key)},
    }
