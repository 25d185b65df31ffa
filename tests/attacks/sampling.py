"""Requests whose parameters contradict each other or the model: never an answer of 500."""

import json
import random

from attack import attack, chat, completion

ODD_NUMBERS = (0, 1, -1, 2, 0.5, 1e-38, 1e-45, 1e-320, 100, 1e38, 2**31, 2**63, -(2**31), 1e308, 128)
ODD_VALUES = (None, True, False, "", "x", "\ud7ff", [], {}, [None], [[]], {"a": 1}, [0], ["a"], *ODD_NUMBERS)
FIELDS = {
    "temperature": (0, 1, 1e-30, 1e-45, 2),
    "top_p": (1, 1e-30, 0.5, 1e-45),
    "top_k": (0, -1, 1, 2**31 - 1),
    "min_p": (0, 1, 1e-40),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (1e-45, 1e-38, 1e-30, 1, 100),
    "seed": (0, -1, 2**63 - 1, -(2**63)),
    "n": (1, 3),
    "min_tokens": (0, 1, 8),
    "max_tokens": (0, 1, 8),
    "logprobs": (True, False),
    "ignore_eos": (True, False),
    "logit_bias": ({}, {"1": -100, "2": -100}, {"0": 100}),
    "stop": ("a", ["a", " "], []),
    "stop_token_ids": ([], [1], list(range(200))),
    "allowed_token_ids": ([1], [0, 1, 2], [300]),
    "bad_words": ([], ["a"], ["a b", " "]),
    "stream": (True, False),
    "prompt_logprobs": (0, 1, 20),
    "truncate_prompt_tokens": (1, -1, 5),
    "skip_special_tokens": (True, False),
    "echo": (True,),
    "include_stop_str_in_output": (True,),
    "return_token_ids": (True,),
    "cache_salt": ("s",),
    "priority": (-1, 5),
    "chat_template_kwargs": ({}, {"enable_thinking": False}),
    "tools": ([], None),
    "documents": ([{"text": "a"}],),
}


@attack("sampling", quick=True)
def no_token_left(target):
    """Allowed, forbidden and end tokens that leave nothing to choose: 400, or an answer; never 500."""
    requests = []
    for token in (0, 1, 2, 3, 201):
        requests.append(chat(allowed_token_ids=[token], min_tokens=4))
        requests.append(chat(allowed_token_ids=[token], logit_bias={str(token): -100}))
        requests.append(chat(allowed_token_ids=[token], stop_token_ids=[token], min_tokens=4))
    for word in ("a", "the", " ", "Hello"):
        tokens = json.loads(target.ask("/tokenize", {"prompt": word, "add_special_tokens": False}).body)["tokens"]
        requests.append(chat(allowed_token_ids=tokens, bad_words=[word]))
        requests.append(chat(allowed_token_ids=tokens, bad_words=[word], min_tokens=2))
        requests.append(completion(allowed_token_ids=tokens, bad_words=[word, "x"]))
    requests.append(chat(allowed_token_ids=[0, 1, 2], min_tokens=8))
    requests.append(chat(stop_token_ids=list(range(1000)), min_tokens=8))
    judge(target, requests)


@attack("sampling", quick=True)
def numbers_that_underflow(target):
    """Parameters that are valid as f64 and zero or infinite as f32."""
    requests = [chat(repetition_penalty=value) for value in (1e-45, 1e-46, 1e-50, 1e-320, 1e-38, 1e-30, 100)]
    requests += [chat(temperature=value) for value in (1e-30, 1e-45, 1e-300)]
    requests += [
        chat(temperature=1, **{name: value}) for name in ("top_p", "min_p") for value in (1e-45, 1e-300, 1e-320)
    ]
    requests += [
        chat(temperature=1e-45, repetition_penalty=1e-38, presence_penalty=2, frequency_penalty=-2, max_tokens=32)
    ]
    judge(target, requests)


def judge(target, requests):
    """Sends each, streamed and not streamed, and claims that none gives a 5xx."""
    bad = []
    for asked in requests:
        for streamed in (False, True):
            answer = target.ask(
                "/v1/completions" if "prompt" in asked else "/v1/chat/completions", {**asked, "stream": streamed}
            )
            if answer.status not in (200, 400) or b'data: {"error"' in answer.body:
                bad.append(f"{answer.status} {answer.body[-160:]!r} to {json.dumps(asked)[:160]}")
    target.claim(not bad, f"{len(bad)} of {2 * len(requests)} answers are faults of the server {bad[:1] or ''}")


def mutated(random: random.Random):
    """A valid request with some parameters added, and perhaps one value replaced by something odd."""
    asked = chat() if random.random() < 0.7 else completion()
    for name in random.sample(sorted(FIELDS), random.randrange(1, 7)):
        asked[name] = random.choice(FIELDS[name])
    if random.random() < 0.5:
        asked[random.choice(sorted(FIELDS) + ["messages", "prompt", "model"])] = random.choice(ODD_VALUES)
    if asked.get("stream") and random.random() < 0.3:
        asked["stream_options"] = random.choice(({"include_usage": True}, {"a": 1}, None, []))
    return asked


@attack("sampling")
def mutated_requests(target):
    """800 random mixtures of valid and odd parameters: 0 answers of 5xx, 0 broken streams."""
    bad, statuses = [], {}
    for _ in range(target.times(800)):
        asked = mutated(target.random)
        answer = target.ask("/v1/completions" if "prompt" in asked else "/v1/chat/completions", asked, timeout=20)
        statuses[answer.status] = statuses.get(answer.status, 0) + 1
        if answer.status not in (200, 400, 404) or b'data: {"error"' in answer.body:
            bad.append(f"{answer.status} {answer.body[-160:]!r} to {json.dumps(asked)[:300]}")
    target.claim(
        not bad, f"statuses {dict(sorted(statuses.items()))}; faults of the server: {len(bad)} {bad[:2] or ''}"
    )
