"""Text that is hard for tokenizers, templates and detokenizers."""

import json
import time

from attack import attack, chat, completion

ODD = {
    "one letter": "x",
    "spaces": " ",
    "carets": "^",
    "newlines": "\n",
    "families joined by ZWJ": "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "combining marks": "a" + "\u0301\u0323" * 20,
    "private use": "\ue000\uf8ff\U000f0000",
    "control tokens": "<|im_end|><|im_start|>",
    "halves of control tokens": "<|im_",
    "right to left": "\u202e\u2066abc",
    "zero bytes": "\x00",
    "noncharacters": "\uffff\ufffe",
    "ligatures that grow": "\ufdfa",
}


@attack("text")
def odd_text(target):
    """A mebibyte of each of thirteen hard texts, for /tokenize and for a chat: answered within 5 s."""
    for what, piece in ODD.items():
        text = piece * ((1 << 20) // len(piece.encode()))
        short = piece * (600 // len(piece.encode()) + 1)
        answers = [
            target.ask("/tokenize", {"prompt": text}),
            target.chat(text),
            target.chat(short, truncate_prompt_tokens=100),
            target.ask("/v1/completions", completion(short, truncate_prompt_tokens=100, echo=True, logprobs=1)),
        ]
        worst = max(answer.seconds for answer in answers)
        statuses = [answer.status for answer in answers]
        target.claim(set(statuses) <= {200, 400} and worst < 5, f"{what}: {statuses}, at most {worst:.2f} s")


@attack("text")
def round_trips(target):
    """Tokenized text is detokenized to the same text."""
    wrong = []
    for what, piece in ODD.items():
        text = piece * 3
        tokens = target.ask("/tokenize", {"prompt": text, "add_special_tokens": False})
        if tokens.status != 200:
            wrong.append(f"{what} {tokens.status}")
            continue
        ids = json.loads(tokens.body)["tokens"]
        back = target.ask("/detokenize", {"tokens": ids})
        if back.status != 200 or json.loads(back.body)["prompt"] != text:
            wrong.append(f"{what} {back.body[:80]!r}")
    target.claim(not wrong, f"round trips that fail: {', '.join(wrong) or 'none'}")


@attack("text")
def cached_prefixes(target):
    """120 prompts that share long prefixes, with and without salts: no cache hits across salts."""
    prefix = "The river runs. " * 40
    hits = []
    for n in range(target.times(60)):
        target.chat(prefix + str(n % 7), cache_salt=f"salt {n}", max_tokens=1)
        probe = target.chat(prefix + str(n % 7), cache_salt=f"probe {n}", max_tokens=1)
        usage = json.loads(probe.body).get("usage", {}) if probe.status == 200 else {}
        hits.append((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))
    target.claim(sum(hits) == 0, f"{sum(hits)} tokens of other salts were hits in {len(hits)} probes")


@attack("text")
def scraping(target):
    """Metrics, models and the OpenAPI document are fetched for 4 s without a pause."""
    statuses, n, end = set(), 0, time.monotonic() + 4
    while time.monotonic() < end:
        for path in ("/metrics", "/v1/models", "/openapi.json", "/load", "/"):
            statuses.add(target.ask(path).status)
            n += 1
    target.claim(statuses == {200}, f"{n} fetches: statuses {sorted(statuses)}")


@attack("text")
def empty_and_huge_names(target):
    """Model names, users, salts and ids at and above their limits."""
    for field in ("model", "user", "cache_salt", "request_id"):
        for value in ("", "\n", "x" * 513, "x" * 1_000_000, "\U0001f600" * 200, "../../etc/passwd", "%s%n"):
            answer = target.ask("/v1/chat/completions", {**chat(max_tokens=1), field: value})
            if answer.status not in (200, 400, 404) or answer.seconds > 2 or len(answer.body) > 5000:
                target.claim(False, f"{field} of {len(value)} characters: {answer.status} in {answer.seconds:.1f} s")
